//! Pre-copy: rounds of dirty pages are sent while the guest runs.
//!
//! This file leads the rounds. A worker for each link sends the pages
//! (`workers.rs`, `chunk_sender.rs`), also in the last round with the guest
//! paused. Devices that write memory without the dirty log seeing it are drained
//! within each round (`drained_rounds.rs`). Rates are those of all links together,
//! measured until all pages of a round have arrived.

mod batch;
mod chunk_sender;
mod chunks;
mod collector;
mod drained_rounds;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_wire::Mode;

use crate::guest::SourceGuest;
use crate::report::Phase;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::options::{SourceOptions, WhenStalled};
use crate::source::precopy::batch::Batch;
use crate::source::precopy::drained_rounds::DrainedRounds;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::unsent::UnsentPages;
use hikkoshi_link::BackgroundSender;

/// The part of the downtime that is not sending dirty pages: pausing, saving
/// and loading the device state, resuming. 17 ms were measured for QEMU.
const SWITCHOVER_COST: Duration = Duration::from_millis(20);

/// Although the dirty pages fit into the downtime, another round is worthwhile if
/// they are at most this fraction of those of the round before, …
const SHRINKING: f64 = 0.5;

/// … and sending them takes longer than this. So the guest is paused for a small
/// part of the allowed downtime, and the additional rounds take at most twice that
/// downtime in total.
const NEGLIGIBLE_DOWNTIME: Duration = Duration::from_millis(10);

/// How pre-copy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The dirty pages fit into the downtime: send them with the guest paused.
    Converged,
    /// The dirty pages follow after the switchover.
    SwitchNow,
}

/// The rounds of one migration.
#[derive(Debug)]
pub(crate) struct Precopy {
    shared: MigrationContext,
    log: Arc<dyn DirtyLog>,
    workers: PrecopyWorkers,
    unsent: Arc<UnsentPages>,
    rounds: u32,
    /// Bytes a second, in the last round that was large enough to measure.
    rate: f64,
}

impl Precopy {
    pub(crate) fn new(
        shared: &MigrationContext,
        log: Arc<dyn DirtyLog>,
        workers: PrecopyWorkers,
        unsent: &Arc<UnsentPages>,
    ) -> Self {
        Self {
            shared: shared.clone(),
            log,
            workers,
            unsent: Arc::clone(unsent),
            rounds: 0,
            rate: 0.0,
        }
    }

    /// Sends rounds until the dirty pages fit into the downtime or `options`
    /// require the switchover.
    pub(crate) fn run(
        &mut self,
        guest: &mut dyn SourceGuest,
        options: &SourceOptions,
    ) -> Result<Verdict, SourceFailure> {
        let all = self.shared.ram.layout().all();
        let mut drained = self.drained_rounds(guest, options);
        let mut warned = false;
        let mut expected = all.len();
        for round in 1.. {
            self.shared.progress.begin(Phase::Precopy, round, expected);
            self.rounds = round;
            let begun = Instant::now();
            let sent = self.sent();
            match &mut drained {
                Some(drained) => drained.round(&self.workers, guest, round == 1)?,
                None => self.round(round == 1)?,
            }
            self.measure(self.sent() - sent, begun.elapsed());
            self.shared.check()?;

            let dirty = self.log.count(all)?;
            let drain = drained
                .as_ref()
                .map_or(Duration::ZERO, DrainedRounds::drain_time);
            if options.mode == Mode::Precopy
                && self.fits(dirty, options.max_downtime, drain)
                && !self.worth_another_round(dirty, expected, drain)
            {
                return Ok(Verdict::Converged);
            }
            if options.mode == Mode::Hybrid && round >= options.precopy_rounds {
                return Ok(Verdict::SwitchNow);
            }
            if round >= options.max_rounds {
                match options.when_stalled {
                    WhenStalled::Switch => return Ok(Verdict::SwitchNow),
                    WhenStalled::Stop => return Err(self.not_converging(round, dirty)),
                    WhenStalled::GoOn if !warned => {
                        warned = true;
                        let why = self.not_converging(round, dirty);
                        self.shared
                            .observer
                            .notice(&format!("{why}; continuing (Ctrl-C cancels)"));
                    }
                    WhenStalled::GoOn => {}
                }
            }
            expected = dirty;
        }
        unreachable!("a u32 of rounds takes centuries");
    }

    /// Rounds with drains, if the guest's devices need them.
    fn drained_rounds(
        &self,
        guest: &dyn SourceGuest,
        options: &SourceOptions,
    ) -> Option<DrainedRounds> {
        if !guest.needs_drain() {
            return None;
        }
        if !options.drain {
            self.shared.observer.notice(
                "the guest's devices write to its memory without the dirty log seeing it, and are \
                 not drained: pages will be lost",
            );
            return None;
        }
        Some(DrainedRounds::new(&self.shared, &self.log, &self.unsent))
    }

    /// The number of rounds so far.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Sends the pages in the log with the guest paused. Afterwards the destination
    /// has every page. Device writes have landed, because pausing drains.
    pub(crate) fn last_round(&self) -> Result<(), SourceFailure> {
        self.round(false)
    }

    /// Ends pre-copy and returns the links. They are empty: every pre-copied page has
    /// been written at the destination.
    pub(crate) fn into_links(self) -> Result<Vec<BackgroundSender>, SourceFailure> {
        self.workers.into_links()
    }

    /// One pass over all memory.
    fn round(&self, first: bool) -> Result<(), SourceFailure> {
        self.workers.run(Batch::round(Arc::clone(&self.log), first))
    }

    /// Bytes sent so far on all links.
    fn sent(&self) -> u64 {
        self.shared.counters.bytes().precopy
    }

    #[allow(clippy::cast_precision_loss)]
    fn measure(&mut self, bytes: u64, time: Duration) {
        // A short round measures buffers rather than the link.
        if bytes > 8 << 20 || self.rate == 0.0 {
            self.rate = bytes as f64 / time.as_secs_f64().max(1e-6);
        }
    }

    /// Whether so many pages can be sent within the downtime. The pause takes a
    /// `drain` of it.
    #[allow(clippy::cast_precision_loss)]
    fn fits(&self, dirty: u64, downtime: Duration, drain: Duration) -> bool {
        let budget = downtime.saturating_sub(SWITCHOVER_COST).max(downtime / 2);
        // There is no budget for storage that takes longer than that to drain.
        let budget = budget.saturating_sub(drain).max(downtime / 10);
        (dirty * hikkoshi_pages::PAGE_BYTES) as f64 <= self.rate * budget.as_secs_f64()
    }

    /// Whether another round makes the downtime much shorter: the last one sent
    /// `before` dirty pages, and `dirty` are dirty now. A round that consists mostly
    /// of its `drain` does not.
    #[allow(clippy::cast_precision_loss)]
    fn worth_another_round(&self, dirty: u64, before: u64, drain: Duration) -> bool {
        let left = (dirty * hikkoshi_pages::PAGE_BYTES) as f64;
        left > self.rate * NEGLIGIBLE_DOWNTIME.max(drain).as_secs_f64()
            && dirty as f64 <= before as f64 * SHRINKING
    }

    fn not_converging(&self, rounds: u32, dirty: u64) -> SourceFailure {
        // Rates and sizes in MiB: far inside the range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mib_per_second = (self.rate / (1 << 20) as f64) as u64;
        SourceFailure::NotConverging {
            rounds,
            dirty_mib: (dirty * hikkoshi_pages::PAGE_BYTES) >> 20,
            mib_per_second,
        }
    }
}
