//! A fine histogram of slow accesses: eight buckets to each doubling of the time.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets to each doubling of the time.
const PER_OCTAVE: u64 = 8;
/// From 1 µs to more than half an hour.
const BUCKETS: usize = 32 * 8;

/// Counts by time. One thread adds, another one reads.
#[derive(Debug)]
pub(crate) struct FineHistogram {
    counts: Box<[AtomicU64]>,
    ticks: AtomicU64,
}

impl Default for FineHistogram {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            ticks: AtomicU64::new(0),
        }
    }
}

impl FineHistogram {
    /// Counts an access of `nanoseconds`, equal to `ticks`.
    pub(crate) fn record(&self, nanoseconds: u64, ticks: u64) {
        if let Some(count) = self.counts.get(bucket(nanoseconds)) {
            count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
        }
        let sum = self.ticks.load(Relaxed).wrapping_add(ticks);
        self.ticks.store(sum, Relaxed);
    }
}

/// Bucket `8 k + s` is from 2^k (1 + s/8) µs to below 2^k (1 + (s+1)/8) µs; bucket 0 also contains
/// everything below 1 µs.
fn bucket(nanoseconds: u64) -> usize {
    let us = (nanoseconds / 1000).max(1);
    let octave = u64::from(us.ilog2());
    let part =
        (nanoseconds.saturating_mul(PER_OCTAVE) / (1000 << octave)).saturating_sub(PER_OCTAVE);
    let bucket = octave * PER_OCTAVE + part.min(PER_OCTAVE - 1);
    usize::try_from(bucket).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// A snapshot of the counts of all workers.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    counts: Vec<u64>,
    pub(crate) ticks: u64,
}

impl Snapshot {
    /// Sums the workers' counts.
    pub(crate) fn take<'a>(workers: impl Iterator<Item = &'a FineHistogram>) -> Self {
        let mut sum = Self {
            counts: vec![0; BUCKETS],
            ticks: 0,
        };
        for worker in workers {
            for (sum, count) in sum.counts.iter_mut().zip(&worker.counts) {
                *sum += count.load(Relaxed);
            }
            sum.ticks += worker.ticks.load(Relaxed);
        }
        sum
    }

    /// The accesses since `before`: their number, and `BUCKET:COUNT,…`, or `-` for none.
    pub(crate) fn since(&self, before: &Self) -> (u64, String) {
        let (mut count, mut text) = (0, String::new());
        for (bucket, (now, then)) in self.counts.iter().zip(&before.counts).enumerate() {
            if now != then {
                let comma = if count == 0 { "" } else { "," };
                let _ = write!(text, "{comma}{bucket}:{}", now - then);
                count += now - then;
            }
        }
        if count == 0 {
            text.push('-');
        }
        (count, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_doubling_has_eight_buckets() {
        for (nanoseconds, wanted) in [
            (0, 0),
            (1_124, 0),
            (1_125, 1),
            (1_999, 7),
            (2_000, 8),
            (1_000_000, 9 * 8 + 7), // 512 (1 + 7.6/8) µs
            (1_024_000, 80),
            (u64::MAX, BUCKETS - 1),
        ] {
            assert_eq!(bucket(nanoseconds), wanted, "{nanoseconds} ns");
        }
    }

    #[test]
    fn only_new_accesses_are_counted() {
        let fine = FineHistogram::default();
        fine.record(40_000, 5);
        let first = Snapshot::take(std::iter::once(&fine));
        fine.record(1_024_000, 7);
        fine.record(1_024_001, 7);
        let second = Snapshot::take([&fine].into_iter());
        assert_eq!(second.since(&first), (2, "80:2".to_owned()));
        assert_eq!(second.ticks - first.ticks, 14);
        assert_eq!(second.since(&second), (0, "-".to_owned()));
    }
}
