//! Latencies of page requests, which are read while they are recorded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hikkoshi_account::{Bucket, LatencySummary};

/// Each power of two of nanoseconds is divided into so many buckets, as a power of two.
const PART_BITS: u32 = 7;
const PARTS: u64 = 1 << PART_BITS;
/// 2^50 ns are 13 days; longer ones count as this. A request waits over an outage.
const POWERS: u32 = 50;
const BUCKETS: usize = (POWERS as usize + 1) << PART_BITS;

/// A histogram without a lock. Quantiles are exact to a hundredth of their value. Takes 51 KiB, all
/// of it at once: recording allocates nothing.
#[derive(Debug)]
pub struct Latency {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Latency {
    /// Adds one latency, in nanoseconds. Three atomic operations.
    pub fn record(&self, ns: u64) {
        if let Some(bucket) = self.buckets.get(bucket(ns)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum_ns.fetch_add(ns, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
    }

    /// The distribution so far.
    #[allow(clippy::cast_precision_loss)]
    pub fn summary(&self) -> LatencySummary {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return LatencySummary::default();
        }
        let max_ns = self.max_ns.load(Relaxed);
        let us = |ns: u64| ns as f64 / 1000.0;
        let quantile = |share: f64| {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut below = 0;
            let number = counts.iter().position(|&in_bucket| {
                below += in_bucket;
                below >= rank
            });
            us(number.map_or(max_ns, |number| middle(number).min(max_ns)))
        };
        LatencySummary {
            count,
            mean: us(self.sum_ns.load(Relaxed)) / count as f64,
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: us(max_ns),
            histogram: by_power_of_two(&counts),
        }
    }
}

/// The bucket of a latency.
fn bucket(ns: u64) -> usize {
    let ns = ns.clamp(1, (1 << POWERS) - 1);
    let power = ns.ilog2();
    // Small values have fewer distinct parts.
    let part = match power.checked_sub(PART_BITS) {
        Some(shift) => (ns >> shift) & (PARTS - 1),
        None => (ns << (PART_BITS - power)) & (PARTS - 1),
    };
    (power as usize) << PART_BITS | usize::try_from(part).unwrap_or_default()
}

/// The first latency in a bucket.
fn first(bucket: usize) -> u64 {
    let (power, part) = (bucket >> PART_BITS, (bucket as u64) & (PARTS - 1));
    ((PARTS + part) << power) >> PART_BITS
}

/// The latency in the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    u64::midpoint(first(bucket), first(bucket + 1))
}

/// The distribution in powers of two of microseconds, from the first to the last that is not empty.
fn by_power_of_two(counts: &[u64]) -> Vec<Bucket> {
    let mut histogram: Vec<Bucket> = Vec::new();
    for (number, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let le_us = middle(number).div_ceil(1000).next_power_of_two();
        while let Some(last) = histogram.last().map(|bucket| bucket.le_us)
            && last < le_us
        {
            histogram.push(Bucket {
                le_us: last * 2,
                count: 0,
            });
        }
        match histogram.last_mut() {
            Some(bucket) => bucket.count += count,
            None => histogram.push(Bucket { le_us, count }),
        }
    }
    histogram
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::report::on_wire::{latency_received, latency_sent};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_latency_is_in_its_bucket(ns in 1_u64..1 << POWERS) {
            let number = bucket(ns);
            prop_assert!(first(number) <= ns && ns < first(number + 1), "{number}");
        }

        /// Beside the latencies themselves.
        #[test]
        fn quantiles_are_right_to_a_hundredth(
            mut latencies in proptest::collection::vec(1_000_u64..10_000_000_000, 1..300),
        ) {
            let counters = Latency::default();
            latencies.iter().for_each(|&ns| counters.record(ns));
            latencies.sort_unstable();
            let here = counters.summary();
            let count = latencies.len();
            prop_assert_eq!(here.count, count as u64);
            let us = |ns: u64| ns as f64 / 1000.0;
            let quantile = |percent: usize| us(latencies[(count * percent).div_ceil(100) - 1]);
            let near = |a: f64, b: f64| (a - b).abs() <= b / 100.0;
            let mean = us(latencies.iter().sum()) / count as f64;
            prop_assert!(near(here.mean, mean), "{here:?} {mean}");
            prop_assert!(near(here.p50, quantile(50)), "{here:?} {latencies:?}");
            prop_assert!(near(here.p99, quantile(99)), "{here:?} {latencies:?}");
            prop_assert!(near(here.max, quantile(100)), "{here:?} {latencies:?}");
            let counted: u64 = here.histogram.iter().map(|b| b.count).sum();
            prop_assert_eq!(counted, here.count);
            prop_assert!(here.histogram.windows(2).all(|pair| pair[1].le_us == 2 * pair[0].le_us));
        }
    }

    #[test]
    fn sums_up() {
        let latency = Latency::default();
        for us in [3, 3, 3, 100] {
            latency.record(us * 1000);
        }
        let summary = latency.summary();
        assert_eq!(
            (summary.count, summary.mean, summary.max),
            (4, 27.25, 100.0)
        );
        assert!((summary.p50 - 3.0).abs() < 0.1);
        let bucket = |le_us, count| Bucket { le_us, count };
        assert_eq!(summary.histogram.first(), Some(&bucket(4, 3)));
        assert_eq!(summary.histogram.last(), Some(&bucket(128, 1)));
        let back = latency_received(latency_sent(&summary));
        assert_eq!((back.count, back.histogram), (4, summary.histogram));
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(Latency::default().summary(), LatencySummary::default());
    }

    #[test]
    fn extremes_are_counted() {
        let counters = Latency::default();
        counters.record(0);
        counters.record(u64::MAX / 4);
        assert_eq!(counters.summary().count, 2);
    }
}
