//! Pre-copy: memory follows the guest's writes while it runs.
//!
//! The dirty log is taken a chunk at a time, right before that chunk is sent:
//! the log is never stale, no sync of the whole guest ever stalls it, and a
//! page that is dirtied again before its turn is sent once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_dirty::DirtyLog;
use hikkoshi_pages::PageRange;

use super::error::SourceFailure;
use super::pieces::{Piece, PieceReader};
use super::{Move, SourceOptions, WhenStalled};
use crate::link::BackgroundSender;
use crate::stats::{Counters, Mode, Phase};

/// Pages whose log is taken at once, 2 MiB: what one page-table page maps, and
/// small enough for a scan not to matter.
pub(super) const CHUNK: u64 = 512;

/// Pages sent in one frame, 1 MiB.
const PIECE: usize = 256;

/// The part of the downtime that is not sending dirty pages: pausing, saving
/// and loading the device state, resuming. 17 ms were measured for QEMU.
const SWITCHOVER_COST: Duration = Duration::from_millis(20);

/// What is left is worth another round, though it fits into the downtime, when
/// it is no more than this part of what was left the round before, …
const SHRINKING: f64 = 0.5;

/// … and sending it takes longer than this. So the guest stands still for a
/// small part of what it may, and the rounds that buy it take at most twice
/// the downtime allowed, together.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(10);

/// What pre-copy came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The rest fits into the downtime: send it with the guest stopped.
    Converged,
    /// The rest is to follow after the switch.
    SwitchNow,
}

/// The rounds of one migration.
#[derive(Debug)]
pub(super) struct Precopy<'a> {
    shared: &'a Move,
    log: Arc<dyn DirtyLog>,
    rounds: u32,
    reader: PieceReader,
    /// The last run of data that was seen in the RAM files.
    data: PageRange,
    /// Bytes a second, over the last round that was large enough to tell.
    rate: f64,
}

impl<'a> Precopy<'a> {
    pub(super) fn new(shared: &'a Move, log: Arc<dyn DirtyLog>) -> Self {
        Self {
            shared,
            log,
            rounds: 0,
            reader: PieceReader::new(PIECE),
            data: PageRange::EMPTY,
            rate: 0.0,
        }
    }

    /// Sends rounds until the rest fits the downtime or `options` says to
    /// switch.
    pub(super) fn run(
        &mut self,
        link: &mut BackgroundSender,
        options: &SourceOptions,
    ) -> Result<Verdict, SourceFailure> {
        let all = self.shared.ram.layout().all();
        let mut warned = false;
        let mut expected = all.len();
        for round in 1.. {
            self.shared.progress.begin(Phase::Precopy, round, expected);
            self.rounds = round;
            let begun = Instant::now();
            let sent = link.sent();
            self.round(link, round == 1)?;
            self.measure(link.sent() - sent, begun.elapsed());
            self.shared.check()?;

            let dirty = self.log.count(all)?;
            if options.mode == Mode::Precopy
                && self.fits(dirty, options.max_downtime)
                && !self.pays(dirty, expected)
            {
                return Ok(Verdict::Converged);
            }
            if options.mode == Mode::Hybrid && round >= options.precopy_rounds {
                return Ok(Verdict::SwitchNow);
            }
            if round >= options.max_rounds {
                match options.when_stalled {
                    WhenStalled::Switch => return Ok(Verdict::SwitchNow),
                    WhenStalled::Stop => return Err(self.stalled(round, dirty)),
                    WhenStalled::GoOn if !warned => {
                        warned = true;
                        let why = self.stalled(round, dirty);
                        self.shared
                            .observer
                            .notice(&format!("{why}; going on (Ctrl-C cancels)"));
                    }
                    WhenStalled::GoOn => {}
                }
            }
            expected = dirty;
        }
        unreachable!("a u32 of rounds takes centuries");
    }

    /// Rounds begun so far.
    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Sends what the log holds, once, with the guest stopped: after it, the
    /// destination has everything.
    pub(super) fn last_round(&mut self, link: &mut BackgroundSender) -> Result<(), SourceFailure> {
        self.round(link, false)?;
        link.drain(&self.shared.cancel)
            .map_err(SourceFailure::link("sending the last dirty pages"))
    }

    /// One pass over all memory. The first one sends everything that is not a
    /// hole in the RAM file: the destination began with nothing but holes.
    fn round(&mut self, link: &mut BackgroundSender, first: bool) -> Result<(), SourceFailure> {
        let shared = self.shared;
        let before = link.sent();
        let mut runs = Vec::new();
        for chunk in shared.ram.layout().all().chunks(CHUNK) {
            shared.check()?;
            runs.clear();
            self.log.take(chunk, &mut |run| runs.push(run))?;
            if first {
                runs.clear();
                self.find_data(chunk, &mut runs)?;
                let data: u64 = runs.iter().map(|r| r.len()).sum();
                Counters::add(&shared.counters.zero, chunk.len() - data);
                shared.progress.done(chunk.len() - data);
            }
            for &run in &runs {
                self.send(link, run)?;
            }
        }
        Counters::add(&shared.counters.precopy_bytes, link.sent() - before);
        Ok(())
    }

    /// Collects the parts of `chunk` that the RAM file has data for.
    ///
    /// A hole that is written after this look is in the dirty log, which was
    /// taken before. So holes are looked for anew in every chunk; what was
    /// data once may be taken for data later.
    fn find_data(
        &mut self,
        chunk: PageRange,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), SourceFailure> {
        let mut rest = chunk;
        while !rest.is_empty() {
            if !self.data.contains(rest.start()) {
                match self.shared.ram.data_run(rest)? {
                    Some(run) => self.data = run,
                    None => return Ok(()),
                }
            }
            let data = self.data.intersect(rest);
            runs.push(data);
            rest = PageRange::new(data.end(), rest.end());
        }
        Ok(())
    }

    fn send(&mut self, link: &mut BackgroundSender, run: PageRange) -> Result<(), SourceFailure> {
        let shared = self.shared;
        self.reader.pieces(&shared.ram, run, |piece| {
            let (pages, result) = match piece {
                Piece::Data(range, content) => {
                    Counters::add(&shared.counters.precopy, range.len());
                    (range.len(), link.pages(range, content, &shared.cancel))
                }
                Piece::Zeros(range) => {
                    Counters::add(&shared.counters.zero, range.len());
                    (range.len(), link.zeros(range, &shared.cancel))
                }
            };
            result.map_err(SourceFailure::link("sending pages"))?;
            shared.progress.done(pages);
            shared.progress.tell(&*shared.observer, link.sent());
            Ok(())
        })
    }

    #[allow(clippy::cast_precision_loss)]
    fn measure(&mut self, bytes: u64, time: Duration) {
        // A short round says more about buffers than about the link.
        if bytes > 8 << 20 || self.rate == 0.0 {
            self.rate = bytes as f64 / time.as_secs_f64().max(1e-6);
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn fits(&self, dirty: u64, downtime: Duration) -> bool {
        let budget = downtime.saturating_sub(SWITCHOVER_COST).max(downtime / 2);
        (dirty * hikkoshi_pages::PAGE_BYTES) as f64 <= self.rate * budget.as_secs_f64()
    }

    /// Whether another round makes the downtime much shorter: the last one
    /// found `before` dirty pages and has left `dirty`.
    #[allow(clippy::cast_precision_loss)]
    fn pays(&self, dirty: u64, before: u64) -> bool {
        let left = (dirty * hikkoshi_pages::PAGE_BYTES) as f64;
        left > self.rate * NEXT_TO_NOTHING.as_secs_f64()
            && dirty as f64 <= before as f64 * SHRINKING
    }

    fn stalled(&self, rounds: u32, dirty: u64) -> SourceFailure {
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
