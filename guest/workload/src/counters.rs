//! The workers' counters, and how they are printed: `key=value`, one line.

use crate::clock::Clock;
use crate::fine_histogram::FineHistogram;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets of the histogram: 0 is below 1 µs, `k` from 2^(k-1) µs to below 2^k µs, the last one
/// contains everything longer (more than half an hour).
const BUCKETS: usize = 32;

/// The counters of one worker. Only the worker adds, so plain loads and stores are sufficient. The
/// main thread only reads, except for `max_ticks`, which it resets. A count that is read slightly
/// late is printed in the next report.
#[derive(Debug, Default)]
#[repr(align(128))] // no two workers' counts in one cache line
pub(crate) struct Counters {
    accesses: AtomicU64,
    ticks: AtomicU64,
    slow: AtomicU64,
    slow_ticks: AtomicU64,
    max_ticks: AtomicU64,
    histogram: [AtomicU64; BUCKETS],
    /// Slow accesses only.
    pub(crate) fine: FineHistogram,
    /// Pages of the workload.
    pub(crate) pages: AtomicU64,
    /// The highest generation written.
    pub(crate) generation: AtomicU64,
}

/// The threshold of slow accesses, and the length of a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    clock: Clock,
    slow_ticks: u64,
    us_ticks: u64,
}

impl Scale {
    pub(crate) fn new(clock: Clock, slow_us: u64) -> Self {
        Self {
            clock,
            slow_ticks: clock.ticks_of_us(slow_us),
            us_ticks: clock.ticks_of_us(1),
        }
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Counters {
    /// Counts one access.
    pub(crate) fn record(&self, scale: &Scale, ticks: u64) {
        add(&self.accesses, 1);
        add(&self.ticks, ticks);
        if ticks > self.max_ticks.load(Relaxed) {
            self.max_ticks.store(ticks, Relaxed);
        }
        if ticks < scale.us_ticks {
            add(&self.histogram[0], 1);
            return;
        }
        let nanoseconds = scale.clock.nanoseconds(ticks);
        add(&self.histogram[bucket(nanoseconds)], 1);
        if ticks >= scale.slow_ticks {
            add(&self.slow, 1);
            add(&self.slow_ticks, ticks);
            self.fine.record(nanoseconds, ticks);
        }
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let us = nanoseconds / 1000;
    ((u64::BITS - us.leading_zeros()) as usize).min(BUCKETS - 1)
}

/// A snapshot of the counters of all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) accesses: u64,
    pub(crate) pages: u64,
    pub(crate) generation: u64,
    ticks: u64,
    slow: u64,
    slow_ticks: u64,
    max_ticks: u64,
    histogram: [u64; BUCKETS],
}

impl Totals {
    /// Sums the workers' counters, and takes their maxima.
    pub(crate) fn take<'a>(workers: impl Iterator<Item = &'a Counters>) -> Self {
        let mut totals = Self::default();
        for worker in workers {
            totals.accesses += worker.accesses.load(Relaxed);
            totals.ticks += worker.ticks.load(Relaxed);
            totals.slow += worker.slow.load(Relaxed);
            totals.slow_ticks += worker.slow_ticks.load(Relaxed);
            totals.max_ticks = totals.max_ticks.max(worker.max_ticks.swap(0, Relaxed));
            totals.pages += worker.pages.load(Relaxed);
            totals.generation = totals.generation.max(worker.generation.load(Relaxed));
            for (sum, bucket) in totals.histogram.iter_mut().zip(&worker.histogram) {
                *sum += bucket.load(Relaxed);
            }
        }
        totals
    }

    /// The accesses since `before`, as `slow=… mean_us=… max_us=… slow_mean_us=… slow_max_us=…
    /// hist=…`.
    pub(crate) fn latency_since(&self, before: &Self, clock: Clock) -> String {
        let us = |ticks: u64| {
            let ns = clock.nanoseconds(ticks);
            format!("{}.{:03}", ns / 1000, ns % 1000)
        };
        let mean = |ticks: u64, count: u64| us(ticks.checked_div(count).unwrap_or(0));
        let slow = self.slow - before.slow;
        let mut text = format!(
            "slow={slow} mean_us={} max_us={} slow_mean_us={} slow_max_us={} hist=",
            mean(self.ticks - before.ticks, self.accesses - before.accesses),
            us(self.max_ticks),
            mean(self.slow_ticks - before.slow_ticks, slow),
            us(if slow > 0 { self.max_ticks } else { 0 }),
        );
        let mut comma = "";
        for (bucket, (now, then)) in self.histogram.iter().zip(&before.histogram).enumerate() {
            if now != then {
                let _ = write!(text, "{comma}{bucket}:{}", now - then);
                comma = ",";
            }
        }
        if comma.is_empty() {
            text.push('-');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two_of_a_microsecond() {
        for (nanoseconds, wanted) in [
            (0, 0),
            (999, 0),
            (1_000, 1),
            (1_999, 1),
            (2_000, 2),
            (3_999, 2),
            (4_000, 3),
            (1_000_000, 10),
            (1_024_000, 11),
            (u64::MAX, BUCKETS - 1),
        ] {
            assert_eq!(bucket(nanoseconds), wanted, "{nanoseconds} ns");
        }
    }

    #[test]
    fn a_report_contains_only_new_accesses() {
        let clock = Clock::calibrate();
        let scale = Scale::new(clock, 100);
        let counters = Counters::default();
        counters.record(&scale, clock.ticks_of_us(1000));
        let first = Totals::take(std::iter::once(&counters));
        let text = first.latency_since(&Totals::default(), clock);
        assert!(text.starts_with("slow=1 "), "{text}");
        assert!(
            text.ends_with("hist=10:1") || text.ends_with("hist=9:1"),
            "{text}"
        );
        counters.record(&scale, 0);
        let second = Totals::take(std::iter::once(&counters));
        assert_eq!(second.accesses, 2);
        assert_eq!(
            second.latency_since(&first, clock),
            "slow=0 mean_us=0.000 max_us=0.000 slow_mean_us=0.000 slow_max_us=0.000 hist=0:1"
        );
        let third = Totals::take(std::iter::once(&counters));
        assert!(third.latency_since(&second, clock).ends_with("hist=-"));
    }
}
