//! A worker: a thread that repeatedly accesses its own pages.

use crate::clock::Clock;
use crate::counters::{Counters, Scale};
use crate::random::Random;
use crate::rate_limiter::RateLimiter;
use crate::system;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

/// What a worker does with its pages.
pub(crate) trait Workload: Send {
    /// Whether an access is due now. A worker without further accesses has finished.
    fn is_due(&self, _orders: &Commands) -> bool {
        true
    }
    /// Makes one access and returns how long touching the memory took, in ticks. Wrong content is
    /// described in `findings`.
    fn access(&mut self, random: &mut Random, findings: &mut Vec<String>) -> u64;
    /// Checks every page.
    fn sweep(&mut self, findings: &mut Vec<String>);
    /// Number of pages.
    fn pages(&self) -> usize;
    /// The highest generation written so far.
    fn generation(&self) -> u32;
}

/// Events for the main thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// A line arrived on the console.
    Line(String),
    /// A page, or a sum over pages, is wrong.
    Bad(String),
    /// A worker has checked all of its pages.
    Swept { pages: usize },
    /// A worker has made its last access.
    Finished,
}

/// Commands that all workers check between two accesses.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Incremented for every requested sweep.
    pub(crate) sweeps: AtomicU32,
    pub(crate) stop: AtomicBool,
    /// Workers of a scan may start.
    pub(crate) scan_started: AtomicBool,
}

/// How often an idle worker checks for commands.
const IDLE: Duration = Duration::from_millis(1);

/// The configuration of a worker.
#[derive(Debug)]
pub(crate) struct WorkerConfig {
    pub(crate) number: usize,
    pub(crate) seed: u64,
    /// Accesses a second for this worker; 0 = no limit.
    pub(crate) rate: u64,
    /// Milliseconds of a burst; 0 = no pauses.
    pub(crate) burst_ms: u64,
    pub(crate) clock: Clock,
    pub(crate) scale: Scale,
    pub(crate) commands: Arc<Commands>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: Sender<Event>,
}

/// Starts a worker, pinned to processor `number` modulo the number of processors.
pub(crate) fn start(
    config: WorkerConfig,
    mut work: Box<dyn Workload>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("worker-{}", config.number))
        .spawn(move || run(&config, work.as_mut()))
}

fn run(config: &WorkerConfig, work: &mut dyn Workload) {
    // Pinned, so that the scheduler does not move it while it measures.
    let _ = system::pin_to(config.number % system::processors());
    let mut random = Random::new(config.seed.wrapping_add(config.number as u64));
    let mut limiter = RateLimiter::new(config.clock, config.rate, config.burst_ms);
    let mut findings = Vec::new();
    let mut swept = 0;
    while !config.commands.stop.load(Ordering::Relaxed) {
        let wanted = config.commands.sweeps.load(Ordering::Relaxed);
        if wanted != swept {
            swept = wanted;
            work.sweep(&mut findings);
            report_findings(config, &mut findings);
            let pages = work.pages();
            let _ = config.events.send(Event::Swept { pages });
        }
        if !work.is_due(&config.commands) {
            std::thread::sleep(IDLE);
            continue;
        }
        limiter.wait();
        let ticks = work.access(&mut random, &mut findings);
        config.counters.record(&config.scale, ticks);
        let counters = &config.counters;
        counters.pages.store(work.pages() as u64, Ordering::Relaxed);
        counters
            .generation
            .store(u64::from(work.generation()), Ordering::Relaxed);
        if !findings.is_empty() {
            report_findings(config, &mut findings);
        }
        if !work.is_due(&config.commands) {
            let _ = config.events.send(Event::Finished);
        }
    }
}

fn report_findings(config: &WorkerConfig, findings: &mut Vec<String>) {
    for finding in findings.drain(..) {
        let _ = config.events.send(Event::Bad(finding));
    }
}
