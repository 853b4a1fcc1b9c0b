//! State shared by all threads of the disk workload: counters, commands, and sweeps.

use crate::clock::Clock;
use crate::worker::{Commands, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;

/// Operations since the start. Each thread adds; the main thread reads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) read_pages: AtomicU64,
    pub(super) written_pages: AtomicU64,
    pub(super) files: AtomicU64,
    pub(super) passes: AtomicU64,
    /// Pages checked by sweeps.
    pub(super) swept: AtomicU64,
}

/// The context of every thread of this module.
#[derive(Clone, Debug)]
pub(super) struct DiskContext {
    pub(super) clock: Clock,
    pub(super) seed: u64,
    pub(super) commands: Arc<Commands>,
    pub(super) counters: Arc<Counters>,
    pub(super) events: Sender<Event>,
}

impl DiskContext {
    pub(super) fn is_stopped(&self) -> bool {
        self.commands.stop.load(Relaxed)
    }

    pub(super) fn report_findings(&self, findings: &mut Vec<String>) {
        for finding in findings.drain(..) {
            // Without a main thread there is no receiver.
            let _ = self.events.send(Event::Bad(finding));
        }
    }
}

/// Answers requested sweeps.
#[derive(Debug, Default)]
pub(super) struct SweepRequests(u32);

impl SweepRequests {
    /// If a sweep is requested, checks every page with `check`, which returns their number.
    pub(super) fn answer(
        &mut self,
        context: &DiskContext,
        findings: &mut Vec<String>,
        check: impl FnOnce(&mut Vec<String>) -> usize,
    ) {
        let wanted = context.commands.sweeps.load(Relaxed);
        if wanted == self.0 {
            return;
        }
        self.0 = wanted;
        let pages = check(findings);
        context.report_findings(findings);
        context.counters.swept.fetch_add(pages as u64, Relaxed);
        // Counts pages of the workers' region only.
        let _ = context.events.send(Event::Swept { pages: 0 });
    }
}

/// Sleeps; returns early when a sweep is requested or the guest stops.
pub(super) fn rest(context: &DiskContext, time: std::time::Duration, sweeps: &SweepRequests) {
    const LOOK: std::time::Duration = std::time::Duration::from_millis(10);
    let until = std::time::Instant::now() + time;
    while std::time::Instant::now() < until
        && !context.is_stopped()
        && context.commands.sweeps.load(Relaxed) == sweeps.0
    {
        std::thread::sleep(LOOK.min(time));
    }
}
