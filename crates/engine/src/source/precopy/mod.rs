//! Pre-copy: rounds of dirty pages are sent while the guest runs.
//!
//! This file leads the rounds. A worker for each link sends the pages
//! (`workers.rs`, `chunk_sender.rs`), also in the last round with the guest
//! paused. Devices whose writes the dirty log does not track are drained within
//! each round (`drained_rounds.rs`). Rates are those of all links together,
//! measured until all pages of a round have arrived.

mod batch;
mod chunk_sender;
mod collector;
pub(crate) mod convergence;
mod dirty_estimate;
mod drained_rounds;
mod range_log;
mod ranges_in_turn;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_dirty::DirtyLog;
use hikkoshi_wire::Mode;

use crate::guest::SourceGuest;
use crate::report::{Cell, Phase};
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::options::{LogRanges, SourceOptions, WhenStalled};
use crate::source::precopy::batch::Batch;
use crate::source::precopy::convergence::{Convergence, PrecopyResult};
use crate::source::precopy::drained_rounds::DrainedRounds;
use crate::source::precopy::range_log::RangeLog;
use crate::source::precopy::ranges_in_turn::RangesInTurn;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::read_log::{join, peek_log, take_log};
use crate::source::unsent::UnsentPages;
use hikkoshi_link::BackgroundSender;
use hikkoshi_pages::PageRange;

/// An estimate of this many times what fits is a reason to read the log: it may be too high, and a
/// further round takes longer than reading.
const LOW: u64 = 2;

/// Pages of a list that a worker sends, at least, unless fewer are left: 1 MiB.
const LIST: u64 = 256;

/// The rounds of one migration.
#[derive(Debug)]
pub(crate) struct Precopy {
    shared: MigrationContext,
    log: Arc<RangeLog>,
    workers: PrecopyWorkers,
    unsent: Arc<UnsentPages>,
    rounds: u32,
    convergence: Convergence,
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
            log: Arc::new(RangeLog::new(
                log,
                shared.ram.layout(),
                shared.options.log_ranges,
            )),
            workers,
            unsent: Arc::clone(unsent),
            rounds: 0,
            convergence: Convergence::default(),
        }
    }

    /// Sends rounds until the dirty pages fit into the downtime or `options`
    /// require the switchover.
    pub(crate) fn run(
        &mut self,
        guest: &mut dyn SourceGuest,
        options: &SourceOptions,
    ) -> Result<PrecopyResult, SourceFailure> {
        let mut drained = self.drained_rounds(guest, options);
        let mut in_turn = matches!(options.log_ranges, Some(LogRanges::Number(_)))
            .then(|| RangesInTurn::new(&self.shared, &self.log, &self.unsent));
        let mut warned = false;
        let mut expected = self.shared.ram.layout().pages();
        for round in 1.. {
            self.shared.progress.begin(Phase::Precopy, round, expected);
            self.rounds = round;
            let (rounds, counters) = (&self.shared.live.rounds, &self.shared.counters);
            rounds.begin(round, counters);
            let begun = Instant::now();
            let sent = self.sent();
            let first = round == 1;
            match (&mut drained, &mut in_turn) {
                (Some(drained), _) => drained.round(&self.workers, guest, first)?,
                (None, Some(in_turn)) => in_turn.round(&self.workers, first)?,
                (None, None) => self.round(first)?,
            }
            self.convergence
                .measure(self.sent() - sent, begun.elapsed());
            self.shared.check()?;

            let drain = drained
                .as_ref()
                .map_or(Duration::ZERO, DrainedRounds::drain_time);
            // The log is not read after each round: that would be a pass over all memory. But the
            // guest is paused, or pre-copy given up, only because of the pages that are in the log.
            let mut dirty = self.log.estimate();
            self.shared
                .live
                .rounds
                .end(&self.shared.counters, Some(dirty));
            if options.mode == Mode::Precopy
                && (is_last(options, round)
                    || (self.convergence).has_converged(
                        options,
                        round,
                        dirty / LOW,
                        expected,
                        drain,
                    ))
            {
                dirty = self.log.count()?;
                if (self.convergence).has_converged(options, round, dirty, expected, drain) {
                    return Ok(PrecopyResult::Converged);
                }
            }
            if options.mode == Mode::Hybrid && round >= options.precopy_rounds {
                return Ok(PrecopyResult::StartPostcopy);
            }
            if round >= options.max_rounds {
                match options.when_stalled {
                    WhenStalled::Switch => return Ok(PrecopyResult::StartPostcopy),
                    WhenStalled::Stop => return Err(self.convergence.failure(round, dirty)),
                    WhenStalled::GoOn if !warned => {
                        warned = true;
                        let why = self.convergence.failure(round, dirty);
                        self.shared.observer.notice(&format!(
                            "{}; continuing (Ctrl-C cancels)",
                            Report::new(&why)
                        ));
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
                "the guest's devices write to its memory, which the dirty log does not track, and \
                 are not drained: pages will be lost",
            );
            return None;
        }
        Some(DrainedRounds::new(&self.shared, &self.log, &self.unsent))
    }

    /// The number of rounds so far.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Sends the few pages in the log, while the guest runs: those that it has written since the
    /// round before. They count as a part of the last round.
    pub(crate) fn begin_last_round(&self) -> Result<(), SourceFailure> {
        let batch = self.begin_round()?;
        self.finish_round(batch)
    }

    /// Sends the pages in the log with the guest paused, after
    /// [`finish_round`](Self::finish_round). Afterwards the destination has every page. Device
    /// writes have landed, because pausing drains.
    ///
    /// The log is not read again, so its pages need not become clean.
    pub(crate) fn last_round(&self) -> Result<(), SourceFailure> {
        let dirty = peek_log(self.log.whole(), self.shared.ram.layout(), |run, runs| {
            join(runs, run);
        })?;
        let batch = self.begin_batch(&dirty)?;
        self.finish_round(batch)
    }

    /// Begins to send the pages in the log, while the paused guest's device state is saved.
    /// [`finish_round`](Self::finish_round) must follow, and then [`last_round`](Self::last_round)
    /// with the pages that the save has dirtied: also those that were in the log before, so they
    /// become clean here.
    ///
    /// The guest dirties nothing or little meanwhile, so the log is taken as a whole: that is
    /// faster than one chunk at a time.
    pub(crate) fn begin_round(&self) -> Result<Arc<Batch>, SourceFailure> {
        let unsent = &self.unsent;
        let taken = take_log(self.log.whole(), self.shared.ram.layout(), |run, runs| {
            unsent.count_write(run);
            join(runs, run);
        })?;
        self.begin_batch(&taken)
    }

    /// Begins to send pages that the log has reported.
    fn begin_batch(&self, runs: &[PageRange]) -> Result<Arc<Batch>, SourceFailure> {
        for &run in runs {
            self.shared.map.add(Cell::Dirty, run);
        }
        let batch = Arc::new(Batch::taken(lists(runs), true));
        self.workers.begin(&batch)?;
        Ok(batch)
    }

    /// Waits until the pages of a begun round have arrived.
    pub(crate) fn finish_round(&self, batch: Arc<Batch>) -> Result<(), SourceFailure> {
        self.workers.finish(batch)
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
}

/// Whether pre-copy is given up after this `round`, unless it has converged. (If it never is, the
/// user is told once that it does not converge.)
fn is_last(options: &SourceOptions, round: u32) -> bool {
    match options.when_stalled {
        WhenStalled::Switch | WhenStalled::Stop => round >= options.max_rounds,
        WhenStalled::GoOn => round == options.max_rounds,
    }
}

/// Lists of some 256 pages or more, for the workers to share. The pages of a run follow each other.
fn lists(runs: &[PageRange]) -> Vec<Vec<PageRange>> {
    let mut lists: Vec<Vec<PageRange>> = Vec::new();
    let mut room = 0;
    for run in runs.iter().flat_map(|run| run.chunks(LIST)) {
        match lists.last_mut() {
            Some(list) if room > 0 => list.push(run),
            _ => {
                lists.push(vec![run]);
                room = LIST;
            }
        }
        room = room.saturating_sub(run.len());
    }
    lists
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;

    #[test]
    fn lists_hold_all_pages_in_order() {
        let run = |start, pages| PageRange::from_len(Page::new(start), pages);
        assert_eq!(lists(&[]), Vec::<Vec<PageRange>>::new());
        let runs = [run(3, 1), run(10, 200), run(300, 600), run(1000, 2)];
        let expected = [
            vec![run(3, 1), run(10, 200), run(300, 256)],
            vec![run(556, 256)],
            vec![run(812, 88), run(1000, 2)],
        ];
        assert_eq!(lists(&runs), expected);
    }
}
