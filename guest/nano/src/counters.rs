//! Counters of times: accesses of a worker, or waits of a task, printed as the Linux test guest
//! prints them.

use crate::clock::Clock;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets of the histogram: 0 is below 1 µs, `k` from 2^(k-1) µs to below 2^k µs.
const BUCKETS: usize = 32;

/// Adds to a counter to which only one task or processor adds.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// The counters. One task or processor adds, and the console's task reads.
#[derive(Debug)]
pub struct Counters {
    ticks: AtomicU64,
    /// The longest since the last report. The console's task resets it.
    max_ticks: AtomicU64,
    /// The longest since the start.
    longest: AtomicU64,
    slow: AtomicU64,
    slow_ticks: AtomicU64,
    histogram: [AtomicU64; BUCKETS],
}

impl Counters {
    /// Nothing counted.
    pub const fn new() -> Self {
        Self {
            ticks: AtomicU64::new(0),
            max_ticks: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            slow_ticks: AtomicU64::new(0),
            histogram: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }

    /// Counts one time.
    pub fn record(&self, scale: &Scale, ticks: u64) {
        add(&self.ticks, ticks);
        if ticks > self.max_ticks.load(Relaxed) {
            self.max_ticks.store(ticks, Relaxed);
            if ticks > self.longest.load(Relaxed) {
                self.longest.store(ticks, Relaxed);
            }
        }
        let us = match ticks < scale.us_ticks {
            true => 0,
            false => scale.clock.nanoseconds(ticks) / 1000,
        };
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        add(&self.histogram[bucket.min(BUCKETS - 1)], 1);
        if ticks >= scale.slow_ticks {
            add(&self.slow, 1);
            add(&self.slow_ticks, ticks);
        }
    }
}

/// The threshold of slow accesses, and the length of a tick.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    clock: Clock,
    /// An access is slow from here on.
    pub slow_ticks: u64,
    us_ticks: u64,
}

impl Scale {
    /// An access is slow from `slow_us` microseconds on.
    pub fn new(clock: Clock, slow_us: u64) -> Self {
        Self {
            clock,
            slow_ticks: clock.ticks_of_us(slow_us),
            us_ticks: clock.ticks_of_us(1),
        }
    }
}

/// The sum of several counters at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    ticks: u64,
    max_ticks: u64,
    slow: u64,
    slow_ticks: u64,
    histogram: [u64; BUCKETS],
}

impl Totals {
    /// Adds the counters up at the end of an interval: the maximum is that of the interval.
    pub fn take<'a>(all: impl Iterator<Item = &'a Counters>) -> Self {
        Self::sum(all, |counters| counters.max_ticks.swap(0, Relaxed))
    }

    /// Adds the counters up: the maximum is that since the start.
    pub fn since_start<'a>(all: impl Iterator<Item = &'a Counters>) -> Self {
        Self::sum(all, |counters| counters.longest.load(Relaxed))
    }

    fn sum<'a>(all: impl Iterator<Item = &'a Counters>, max: fn(&Counters) -> u64) -> Self {
        let mut totals = Self::default();
        for counters in all {
            totals.ticks += counters.ticks.load(Relaxed);
            totals.max_ticks = totals.max_ticks.max(max(counters));
            totals.slow += counters.slow.load(Relaxed);
            totals.slow_ticks += counters.slow_ticks.load(Relaxed);
            for (sum, bucket) in totals.histogram.iter_mut().zip(&counters.histogram) {
                *sum += bucket.load(Relaxed);
            }
        }
        totals
    }

    /// What was counted since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut interval = *self;
        interval.ticks -= before.ticks;
        interval.slow -= before.slow;
        interval.slow_ticks -= before.slow_ticks;
        for (count, before) in interval.histogram.iter_mut().zip(&before.histogram) {
            *count -= before;
        }
        interval
    }

    /// The sum of the times.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.histogram.iter().sum()
    }

    /// As `slow=… mean_us=… max_us=… slow_mean_us=… slow_max_us=… hist=…`.
    pub fn latency(self, clock: Clock) -> impl fmt::Display {
        Latency(self, clock)
    }

    /// As `wait_mean_us=… wait_max_us=… wait_hist=…`.
    pub fn waits(self, clock: Clock) -> impl fmt::Display {
        Waits(self, clock)
    }
}

fn us(clock: Clock, ticks: u64) -> Thousandths {
    Thousandths(clock.nanoseconds(ticks))
}

fn mean(clock: Clock, ticks: u64, count: u64) -> Thousandths {
    us(clock, ticks.checked_div(count).unwrap_or(0))
}

struct Latency(Totals, Clock);

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(totals, clock) = self;
        let slow_max = if totals.slow > 0 { totals.max_ticks } else { 0 };
        write!(
            f,
            "slow={} mean_us={} max_us={} slow_mean_us={} slow_max_us={} hist={}",
            totals.slow,
            mean(*clock, totals.ticks, totals.count()),
            us(*clock, totals.max_ticks),
            mean(*clock, totals.slow_ticks, totals.slow),
            us(*clock, slow_max),
            Histogram(&totals.histogram),
        )
    }
}

struct Waits(Totals, Clock);

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(totals, clock) = self;
        write!(
            f,
            "wait_mean_us={} wait_max_us={} wait_hist={}",
            mean(*clock, totals.ticks, totals.count()),
            us(*clock, totals.max_ticks),
            Histogram(&totals.histogram),
        )
    }
}

struct Histogram<'a>(&'a [u64; BUCKETS]);

impl fmt::Display for Histogram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (bucket, &count) in self.0.iter().enumerate() {
            if count > 0 {
                write!(f, "{comma}{bucket}:{count}")?;
                comma = ",";
            }
        }
        f.write_str(if comma.is_empty() { "-" } else { "" })
    }
}

/// A number of thousandths as a decimal number with three places.
#[derive(Clone, Copy, Debug)]
pub struct Thousandths(pub u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
