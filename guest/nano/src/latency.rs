//! Times of accesses in an interval, printed as the Linux test guest prints them.

use crate::clock::Clock;
use core::fmt;

/// Buckets of the histogram: 0 is below 1 µs, `k` from 2^(k-1) µs to below 2^k µs.
const BUCKETS: usize = 32;

/// The accesses of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    clock: Clock,
    slow_ticks: u64,
    /// Number of accesses.
    pub accesses: u64,
    ticks: u64,
    max_ticks: u64,
    slow: u64,
    slow_sum: u64,
    histogram: [u64; BUCKETS],
}

impl Latency {
    /// An interval without accesses.
    pub fn new(clock: Clock, slow_us: u64) -> Self {
        Self {
            clock,
            slow_ticks: clock.ticks_of_us(slow_us),
            accesses: 0,
            ticks: 0,
            max_ticks: 0,
            slow: 0,
            slow_sum: 0,
            histogram: [0; BUCKETS],
        }
    }

    /// Counts one access.
    pub fn record(&mut self, ticks: u64) {
        self.accesses += 1;
        self.ticks += ticks;
        self.max_ticks = self.max_ticks.max(ticks);
        if ticks >= self.slow_ticks {
            self.slow += 1;
            self.slow_sum += ticks;
        }
        let us = self.clock.nanoseconds(ticks) / 1000;
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        self.histogram[bucket.min(BUCKETS - 1)] += 1;
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ticks: u64| Thousandths(self.clock.nanoseconds(ticks));
        let mean = |ticks: u64, count: u64| us(ticks.checked_div(count).unwrap_or(0));
        write!(
            f,
            "slow={} mean_us={} max_us={} slow_mean_us={} slow_max_us={} hist=",
            self.slow,
            mean(self.ticks, self.accesses),
            us(self.max_ticks),
            mean(self.slow_sum, self.slow),
            us(if self.slow > 0 { self.max_ticks } else { 0 }),
        )?;
        let mut comma = "";
        for (bucket, &count) in self.histogram.iter().enumerate() {
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
