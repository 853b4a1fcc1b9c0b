//! Rounds for a guest with devices whose writes the dirty log does not track.
//!
//! A direct disk read pins its pages when it is submitted. The log sees a write
//! then, and nothing when the data lands. A page that is taken and copied in
//! between arrives without the data, and no later take would report it. So here
//! the order is **take, then drain, then copy**: what was pinned before the take
//! has landed after the drain, and what is submitted after the take is marked
//! again. What was pinned before the log was started has landed before the first
//! take: there is a drain at the beginning, which also measures how long one takes.
//!
//! One thread takes the log of a *batch* of ranges and drains. The workers send the
//! batch while the next one is prepared, so the links do not wait for drains:
//!
//! ```text
//! leader    take 1, drain │ take 2, drain │ (wait for 1) │ take 3, drain │ …
//! workers                 │ send 1 ────────────────────▶ │ send 2 ──────▶ …
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_pages::{PAGE_BYTES, PageRange};

use crate::guest::SourceGuest;
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::batch::Batch;
use crate::source::precopy::collector::Collector;
use crate::source::precopy::lists::lists;
use crate::source::precopy::range_log::RangeLog;
use crate::source::precopy::round_rest::RoundRest;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::unsent::UnsentPages;

/// Sends rounds with drains.
#[derive(Debug)]
pub(crate) struct DrainedRounds {
    shared: MigrationContext,
    log: Arc<RangeLog>,
    collector: Collector,
    size: BatchSize,
}

/// A batch that the workers send.
#[derive(Debug)]
struct Sending {
    batch: Arc<Batch>,
    pages: u64,
    since: Instant,
}

impl DrainedRounds {
    pub(crate) fn new(
        shared: &MigrationContext,
        log: &Arc<RangeLog>,
        unsent: &Arc<UnsentPages>,
    ) -> Self {
        Self {
            shared: shared.clone(),
            log: Arc::clone(log),
            collector: Collector::new(shared, unsent),
            size: BatchSize::new(Duration::ZERO),
        }
    }

    /// The expected duration of a drain.
    pub(crate) fn drain_time(&self) -> Duration {
        self.size.drain
    }

    /// One pass over all memory, unless it ends early. Every link is empty when it returns. Returns
    /// what was not sent.
    pub(crate) fn round(
        &mut self,
        workers: &PrecopyWorkers,
        guest: &mut dyn SourceGuest,
        first: bool,
    ) -> Result<RoundRest, SourceFailure> {
        self.collector.begin();
        if first {
            let took = self.drain(guest)?;
            self.size = BatchSize::new(took);
        }
        let mut sending = None;
        let done = self.batches(workers, guest, first, &mut sending);
        if let (Err(_), Some(Sending { batch, .. })) = (&done, sending) {
            // The round has failed. This only waits for the workers.
            batch.abandon();
            let _ = workers.finish(batch);
        }
        done
    }

    /// The batches of [`Self::round`]. On an error `sending` is the batch that the workers still
    /// send.
    fn batches(
        &mut self,
        workers: &PrecopyWorkers,
        guest: &mut dyn SourceGuest,
        first: bool,
        sending: &mut Option<Sending>,
    ) -> Result<RoundRest, SourceFailure> {
        let (mut next, mut left) = (0, Vec::new());
        loop {
            self.shared.check()?;
            if self.shared.control.ends_precopy() {
                if let Some(before) = sending.take() {
                    left.extend(self.finish(workers, before)?);
                }
                workers.empty_links()?;
                return Ok(RoundRest {
                    pages: left,
                    unvisited: self.log.from(next),
                });
            }
            let (chunks, pages, last) = self.take(first, &mut next)?;
            if pages > 0 {
                let took = self.drain(guest)?;
                self.size.drained(took);
            }
            let batch = Batch::taken(chunks, last).until(&self.shared.control);
            let batch = Arc::new(batch);
            workers.begin(&batch)?;
            let started = Sending {
                batch,
                pages,
                since: Instant::now(),
            };
            if let Some(before) = sending.replace(started) {
                left.extend(self.finish(workers, before)?);
                // The workers begin the next one only now.
                if let Some(sending) = sending {
                    sending.since = Instant::now();
                }
            }
            if last {
                if let Some(rest) = sending.take() {
                    left.extend(self.finish(workers, rest)?);
                }
                return Ok(RoundRest {
                    pages: left,
                    unvisited: PageRange::EMPTY,
                });
            }
        }
    }

    /// Takes the log of ranges from number `next` on, until there are enough pages
    /// for a batch. Returns the pages, their number, and whether this was the last
    /// range.
    fn take(
        &mut self,
        first: bool,
        next: &mut u64,
    ) -> Result<(Vec<Vec<PageRange>>, u64, bool), SourceFailure> {
        let end = self.log.ranges();
        let (mut batch, mut pages) = (Vec::new(), 0);
        while *next < end && pages < self.size.pages() {
            let mut runs = Vec::new();
            self.collector.collect(&self.log, first, *next, &mut runs)?;
            *next += 1;
            if !runs.is_empty() {
                pages += runs.iter().map(|run| run.len()).sum::<u64>();
                batch.extend(lists(&runs));
            }
        }
        Ok((batch, pages, *next >= end))
    }

    /// Drains, and returns how long that took.
    fn drain(&self, guest: &mut dyn SourceGuest) -> Result<Duration, SourceFailure> {
        let begun = Instant::now();
        let drained = guest.drain(&self.shared.cancel);
        // A cancellation is the reason why the drain was given up.
        self.shared.check()?;
        drained?;
        let took = begun.elapsed();
        self.shared.counters.add_drain(took);
        Ok(took)
    }

    /// Returns what was not sent.
    fn finish(
        &mut self,
        workers: &PrecopyWorkers,
        sending: Sending,
    ) -> Result<Vec<PageRange>, SourceFailure> {
        let rest = workers.finish(sending.batch)?;
        self.size.sent(sending.pages, sending.since.elapsed());
        Ok(rest.pages)
    }
}

/// How many pages are taken before a drain.
///
/// The guest's disk requests wait during a drain, so drains may be only a small
/// part of the time. But the longer a batch, the more of its pages are dirtied
/// again before they are sent, and go twice.
#[derive(Debug)]
struct BatchSize {
    pages: u64,
    /// The duration of a drain, as a moving average with weight 1/2.
    drain: Duration,
}

/// Sending a batch takes at least this many times as long as its drain: drains
/// are 5 % of a round.
const SHARE: f64 = 20.0;

/// 8 MiB: a drain of an idle disk takes 1.1 ms (measured), some 2 % of what
/// sending this takes at 1 Gbit/s.
const MIN_BATCH: u64 = (8 << 20) / PAGE_BYTES;

/// 1 GiB: beyond that, pages are stale for seconds.
const MAX_BATCH: u64 = (1 << 30) / PAGE_BYTES;

/// The rate before the first measurement, in pages a second: that of a 10 Gbit/s
/// network. If the network is slower, the first batch is larger than necessary, in a
/// round that sends everything anyway.
const EXPECTED_RATE: f64 = 1.25e9 / 4096.0;

/// A batch is at most so many times as large as the one before, because one slow
/// drain is not significant.
const GROWTH: u64 = 4;

impl BatchSize {
    /// The size of the first batch, after a drain that took this long.
    fn new(drain: Duration) -> Self {
        Self {
            pages: Self::for_rate(EXPECTED_RATE, drain).clamp(MIN_BATCH, MAX_BATCH),
            drain,
        }
    }

    /// The number of pages in a batch at this rate.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive, and it saturates.
    fn for_rate(rate: f64, drain: Duration) -> u64 {
        (rate * drain.as_secs_f64() * SHARE) as u64
    }

    fn pages(&self) -> u64 {
        self.pages
    }

    fn drained(&mut self, took: Duration) {
        self.drain = (self.drain + took) / 2;
    }

    /// Adapts to a batch of `pages` that was sent in `took`.
    #[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
    fn sent(&mut self, pages: u64, took: Duration) {
        // A small batch measures the round trip rather than the rate.
        if pages < MIN_BATCH / 2 || took.is_zero() {
            return;
        }
        let rate = pages as f64 / took.as_secs_f64();
        let wanted = Self::for_rate(rate, self.drain);
        self.pages = wanted.clamp(MIN_BATCH, (self.pages * GROWTH).min(MAX_BATCH));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sends batches at `rate` pages a second until nothing changes.
    fn settled(rate: u64, drain: Duration) -> BatchSize {
        let mut size = BatchSize::new(drain);
        for _ in 0..20 {
            size.drained(drain);
            let pages = size.pages();
            size.sent(
                pages,
                SECOND * u32::try_from(pages).unwrap() / u32::try_from(rate).unwrap(),
            );
        }
        size
    }

    #[test]
    fn drains_are_a_twentieth_of_the_time() {
        // 25,600 pages a second are 100 MiB/s.
        for (rate, millis) in [(25_600, 40), (25_600, 200), (256_000, 10)] {
            let drain = Duration::from_millis(millis);
            let pages = settled(rate, drain).pages();
            let expected = rate * millis * 20 / 1000;
            assert!(
                pages.abs_diff(expected) <= expected / 100,
                "{rate}/s, {millis} ms: {pages} instead of {expected}"
            );
        }
    }

    #[test]
    fn batches_stay_within_bounds() {
        assert_eq!(settled(25_600, Duration::from_micros(1)).pages(), MIN_BATCH);
        assert_eq!(settled(250_000, Duration::from_secs(5)).pages(), MAX_BATCH);
        // One slow drain does not make a batch of everything.
        let mut size = BatchSize::new(Duration::from_millis(1));
        let before = size.pages();
        size.drained(Duration::from_secs(10));
        size.sent(before, Duration::from_millis(100));
        assert_eq!(size.pages(), before * GROWTH);
    }

    #[test]
    fn small_batches_do_not_change_the_size() {
        let mut size = BatchSize::new(Duration::from_millis(1));
        let before = size.pages();
        size.drained(SECOND);
        size.sent(3, Duration::from_millis(1));
        assert_eq!(size.pages(), before);
    }
}
