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
mod dirty_estimate;
mod drained_rounds;
mod lists;
mod range_log;
mod round_rest;
pub(crate) mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_wire::Mode;

use crate::guest::SourceGuest;
use crate::report::{Cell, Phase};
use crate::source::context::MigrationContext;
use crate::source::convergence::{Convergence, PrecopyResult};
use crate::source::disks;
use crate::source::error::SourceFailure;
use crate::source::options::{SourceOptions, WhenStalled};
use crate::source::precopy::batch::Batch;
use crate::source::precopy::drained_rounds::DrainedRounds;
use crate::source::precopy::lists::lists;
use crate::source::precopy::range_log::RangeLog;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::read_log::{join, peek_log, take_log};
use crate::source::unsent::UnsentPages;
use hikkoshi_link::BackgroundSender;
use hikkoshi_pages::PageRange;

pub(crate) use round_rest::RoundRest;

/// An estimate of this many times what fits is a reason to read the log: it may be too high, and a
/// further round takes longer than reading.
const LOW: u64 = 2;

/// How often the pages in the log are sent right before the pause, until what the guest writes
/// meanwhile fits into the downtime. Each time takes at most about as long as that.
const TRIES: u32 = 3;

/// The rounds of one migration.
#[derive(Debug)]
pub(crate) struct Precopy {
    shared: MigrationContext,
    log: Arc<RangeLog>,
    workers: PrecopyWorkers,
    unsent: Arc<UnsentPages>,
    rounds: u32,
    convergence: Convergence,
    /// The pages that were dirty after the last round.
    dirty: u64,
    /// How long the guest's disks take to drain, as last measured.
    drain: Duration,
    /// For how long the paused guest waits until the log is read, as last measured.
    reading: Duration,
    /// That it does not converge was reported.
    warned: bool,
    /// What the last round has not sent.
    rest: RoundRest,
}

impl Precopy {
    /// For a log that was just started; `begun` is a time before that.
    pub(crate) fn new(
        shared: &MigrationContext,
        (log, begun): (Arc<dyn DirtyLog>, Instant),
        workers: PrecopyWorkers,
        unsent: &Arc<UnsentPages>,
    ) -> Self {
        Self {
            shared: shared.clone(),
            log: Arc::new(RangeLog::new(log, begun, shared.ram.layout())),
            workers,
            unsent: Arc::clone(unsent),
            rounds: 0,
            convergence: Convergence::default(),
            dirty: shared.ram.layout().pages(),
            drain: Duration::ZERO,
            reading: Duration::ZERO,
            warned: false,
            rest: RoundRest::default(),
        }
    }

    /// Sends rounds until the dirty pages fit into the downtime, or `options` or the control
    /// require the switchover. Continues after the rounds of an earlier call.
    pub(crate) fn run(
        &mut self,
        guest: &mut dyn SourceGuest,
        options: &SourceOptions,
    ) -> Result<PrecopyResult, SourceFailure> {
        let mut drained = self.drained_rounds(guest, options);
        for round in self.rounds.saturating_add(1).. {
            let expected = self.dirty;
            self.shared.progress.begin(Phase::Precopy, round, expected);
            self.rounds = round;
            let (rounds, counters) = (&self.shared.live.rounds, &self.shared.counters);
            rounds.begin(round, counters);
            let begun = Instant::now();
            let sent = self.sent();
            let first = round == 1;
            let rest = match &mut drained {
                Some(drained) => drained.round(&self.workers, guest, first)?,
                None => self.round(first)?,
            };
            self.rest = rest.of_round(first);
            self.convergence
                .measure(self.sent() - sent, begun.elapsed());
            self.shared.check()?;
            disks::check(&self.shared, guest)?;

            self.drain = drained
                .as_ref()
                .map_or(Duration::ZERO, DrainedRounds::drain_time);
            // The log is not read after each round: that would be a pass over all memory. But the
            // guest is paused, or pre-copy given up, only because of the pages that are in the log.
            let mut dirty = self.log.estimate();
            self.shared
                .live
                .rounds
                .end(&self.shared.counters, Some(dirty));
            let control = &self.shared.control;
            let has_converged = |max_downtime, dirty| {
                let options = SourceOptions {
                    max_downtime,
                    ..options.clone()
                };
                (self.convergence).has_converged(&options, round, dirty, expected, self.drain)
            };
            let mut is_counted = false;
            if options.mode == Mode::Precopy
                && !control.ends_precopy()
                && (is_last(options, round) || has_converged(control.max_downtime(), dirty / LOW))
            {
                dirty = self.log.count()?;
                is_counted = true;
            }
            let ended = control.end_precopy(starts_postcopy(options, round), |max_downtime| {
                is_counted && has_converged(max_downtime, dirty)
            });
            self.dirty = dirty;
            self.convergence.leaves(dirty);
            if let Some(result) = ended {
                return Ok(result);
            }
            self.check_rounds(options)?;
        }
        unreachable!("a u32 of rounds takes centuries");
    }

    /// After a round, or the check before the pause, that leaves too much: fails if there may be no
    /// further rounds, or reports once that there were too many, or that more do not help.
    fn check_rounds(&mut self, options: &SourceOptions) -> Result<(), SourceFailure> {
        let downtime = self.shared.control.max_downtime();
        let what = self.convergence.failure(
            (self.rounds, self.dirty),
            downtime,
            self.drain,
            self.reading,
        );
        let are_over = self.rounds >= options.max_rounds;
        if !are_over && what.slow_log.is_none() {
            return Ok(());
        }
        match options.when_stalled {
            // It has ended.
            WhenStalled::Switch if are_over => {}
            WhenStalled::Stop if are_over => return Err(SourceFailure::NotConverging { what }),
            _ if !self.warned => {
                self.warned = true;
                let advice = what.advice_now(&options.set_command);
                let text = format!("{what}; continuing ({advice})");
                self.shared.observer.notice(&text);
            }
            _ => {}
        }
        Ok(())
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

    /// After rounds that have converged, right before the pause: sends the pages in the log while
    /// the guest runs, which count as a part of the last round. `false`: what it has written
    /// meanwhile does not fit into the downtime, several times, so it must not be paused yet. The
    /// guest, the line or the host have changed since the rounds.
    ///
    /// A guest that is drained with each round does not get that part of the round: its pages are
    /// only counted.
    ///
    /// Each time the log is read twice while the guest runs: it is taken, and then counted. A pass
    /// over the page tables of 16 GiB takes one thread some 20 ms (docs/dirty-logging.md). The
    /// paused guest waits for two such passes, too, which therefore count here.
    pub(crate) fn begin_last_round(
        &mut self,
        guest: &dyn SourceGuest,
    ) -> Result<bool, SourceFailure> {
        let is_drained = guest.needs_drain();
        for _ in 0..TRIES {
            let mut take = Duration::ZERO;
            if !is_drained {
                let (begun, sent) = (Instant::now(), self.sent());
                let batch = self.begin_round()?;
                take = begun.elapsed();
                self.finish_round(batch)?;
                self.convergence
                    .measure(self.sent() - sent, begun.elapsed());
            }
            let begun = Instant::now();
            self.dirty = self.dirty_runs()?.iter().map(|run| run.len()).sum();
            let peek = begun.elapsed();
            self.reading = take.max(peek) + peek;
            let limit = self.shared.control.max_downtime();
            if (self.convergence).may_pause(self.dirty, limit, self.drain, self.reading) {
                return Ok(true);
            }
            if is_drained {
                break;
            }
        }
        Ok(false)
    }

    /// After [`begin_last_round`](Self::begin_last_round) has said no: whether post-copy follows
    /// instead of further rounds.
    ///
    /// # Errors
    /// If neither may follow.
    pub(crate) fn gives_up(
        &mut self,
        options: &SourceOptions,
    ) -> Result<Option<PrecopyResult>, SourceFailure> {
        let control = &self.shared.control;
        control.begin_precopy();
        let gives_up = starts_postcopy(options, self.rounds);
        if (gives_up || control.ends_precopy())
            && let Some(result) = control.end_precopy(gives_up, |_| false)
        {
            return Ok(Some(result));
        }
        self.convergence.leaves(self.dirty);
        self.check_rounds(options)?;
        Ok(None)
    }

    /// Sends the pages in the log with the guest paused, after
    /// [`finish_round`](Self::finish_round). Afterwards the destination has every page. Device
    /// writes have landed, because pausing drains.
    ///
    /// The log is not read again, so its pages need not become clean.
    pub(crate) fn last_round(&self) -> Result<(), SourceFailure> {
        let batch = self.begin_batch(&self.dirty_runs()?)?;
        self.finish_round(batch)
    }

    /// The pages in the log, which stay in it. Several threads read it.
    fn dirty_runs(&self) -> Result<Vec<PageRange>, SourceFailure> {
        peek_log(self.log.whole(), self.shared.ram.layout(), |run, runs| {
            join(runs, run);
        })
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
        self.workers.finish(batch).map(drop)
    }

    /// Ends pre-copy and returns the links, and what the last round has not sent although the dirty
    /// log may not have it. The links are empty: every pre-copied page has been written at the
    /// destination.
    pub(crate) fn into_links(self) -> Result<(Vec<BackgroundSender>, RoundRest), SourceFailure> {
        Ok((self.workers.into_links()?, self.rest))
    }

    /// One pass over all memory, unless it ends early. Returns what was not sent.
    fn round(&self, first: bool) -> Result<RoundRest, SourceFailure> {
        let batch = Batch::round(Arc::clone(&self.log), first);
        let rest = self.workers.run(batch.until(&self.shared.control))?;
        Ok(RoundRest {
            pages: rest.pages,
            unvisited: self.log.from(rest.next),
        })
    }

    /// Bytes sent so far on all links. What is left may not become as small as what was sent
    /// before, so the downtime is estimated by what the line carries.
    fn sent(&self) -> u64 {
        self.shared.counters.bytes().precopy
    }
}

impl RoundRest {
    /// What the dirty log may not have: it has the memory whose log was not taken, unless the
    /// destination never had it.
    fn of_round(self, first: bool) -> Self {
        Self {
            pages: self.pages,
            unvisited: if first {
                self.unvisited
            } else {
                PageRange::EMPTY
            },
        }
    }
}

/// Whether post-copy follows after this `round`, unless pre-copy has converged.
fn starts_postcopy(options: &SourceOptions, round: u32) -> bool {
    match options.mode {
        Mode::Hybrid if round >= options.precopy_rounds => true,
        _ => round >= options.max_rounds && options.when_stalled == WhenStalled::Switch,
    }
}

/// Whether pre-copy is given up after this `round`, unless it has converged. (If it never is, the
/// user is told once that it does not converge.)
fn is_last(options: &SourceOptions, round: u32) -> bool {
    match options.when_stalled {
        WhenStalled::Switch | WhenStalled::Stop => round >= options.max_rounds,
        WhenStalled::Continue => round == options.max_rounds,
    }
}
