//! Access times: sums and histograms.

use std::collections::BTreeMap;

/// Memory access times, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// Number of accesses.
    pub accesses: u64,
    /// Accesses that took at least the workload's threshold.
    pub slow: u64,
    /// Mean of all accesses.
    pub mean_us: f64,
    /// The longest access.
    pub max_us: f64,
    /// Mean of the slow accesses; 0 without any.
    pub slow_mean_us: f64,
    /// All accesses by time.
    pub histogram: Histogram,
}

impl Latency {
    /// Adds another interval's accesses.
    pub fn add(&mut self, other: &Self) {
        let mean = |a: f64, n: u64, b: f64, m: u64| match n + m {
            0 => 0.0,
            sum => (a * as_f64(n) + b * as_f64(m)) / as_f64(sum),
        };
        self.mean_us = mean(self.mean_us, self.accesses, other.mean_us, other.accesses);
        self.slow_mean_us = mean(self.slow_mean_us, self.slow, other.slow_mean_us, other.slow);
        self.max_us = self.max_us.max(other.max_us);
        self.accesses += other.accesses;
        self.slow += other.slow;
        self.histogram.add(&other.histogram);
    }
}

/// Exact for counts below 2^53.
#[allow(clippy::cast_precision_loss)]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Counts by power of two of a microsecond: bucket 0 is below 1 µs, bucket `k` from 2^(k-1) µs to
/// below 2^k µs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Histogram(pub(super) BTreeMap<u32, u64>);

impl Histogram {
    /// The non-empty buckets, ascending: number and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().map(|(&bucket, &count)| (bucket, count))
    }

    /// The total count.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds another histogram's counts.
    pub fn add(&mut self, other: &Self) {
        for (bucket, count) in other.buckets() {
            *self.0.entry(bucket).or_default() += count;
        }
    }

    /// The bound in µs below which at least the fraction `part` (0 to 1) lies; `None` when empty.
    pub fn below_us(&self, part: f64) -> Option<u64> {
        let wanted = as_f64(self.count()) * part;
        let mut seen = 0;
        self.buckets().find_map(|(bucket, count)| {
            seen += count;
            (as_f64(seen) >= wanted).then(|| 1u64.checked_shl(bucket).unwrap_or(u64::MAX))
        })
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == "-" {
            return Some(Self::default());
        }
        text.split(',')
            .map(|pair| {
                let (bucket, count) = pair.split_once(':')?;
                Some((bucket.parse().ok()?, count.parse().ok()?))
            })
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// Counts with eight buckets to each doubling: bucket `8 k + s` is from 2^k (1 + s/8) µs to below
/// 2^k (1 + (s+1)/8) µs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FineHistogram(pub(super) BTreeMap<u32, u64>);

impl FineHistogram {
    /// The non-empty buckets, ascending: upper bound in µs, and count.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.0
            .iter()
            .map(|(&bucket, &count)| (Self::below(bucket), count))
    }

    /// The total count.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The bound in µs below which at least the fraction `part` (0 to 1) lies: at most one eighth
    /// above the true value. `None` when empty.
    pub fn below_us(&self, part: f64) -> Option<f64> {
        let wanted = as_f64(self.count()) * part;
        let mut seen = 0;
        self.0.iter().find_map(|(&bucket, &count)| {
            seen += count;
            (as_f64(seen) >= wanted).then(|| Self::below(bucket))
        })
    }

    fn below(bucket: u32) -> f64 {
        f64::from(bucket / 8).exp2() * (1.0 + f64::from(bucket % 8 + 1) / 8.0)
    }
}
