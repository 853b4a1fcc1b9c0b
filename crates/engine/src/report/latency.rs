//! Request latencies.

use std::time::Duration;

use hdrhistogram::Histogram;
use hikkoshi_account::{Bucket, LatencySummary};

/// The longest latency that is recorded, a week: longer ones count as this. A request waits over an
/// outage, and `--retry-for` has no limit.
const LONGEST_NS: u64 = 7 * 24 * 3600 * 1_000_000_000;

/// Latencies of page requests, to two significant digits. Takes 45 KiB, all of it at once:
/// recording allocates nothing.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        #[allow(clippy::expect_used)] // Constants that hdrhistogram accepts.
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("valid bounds"))
    }
}

impl Latency {
    /// Adds one request.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST_NS);
        self.0.saturating_record(ns.max(1));
    }

    /// Adds another thread's requests.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, the only way to fail.
        let _ = self.0.add(&other.0);
    }

    /// The distribution so far.
    #[allow(clippy::cast_precision_loss)]
    pub fn summary(&self) -> LatencySummary {
        let us = |ns: u64| ns as f64 / 1000.0;
        let mut histogram = Vec::new();
        if !self.0.is_empty() {
            let mut le_us = 1;
            let mut below = 0;
            while below < self.0.len() {
                let upto = self.0.count_between(0, le_us * 1000);
                if upto > below || !histogram.is_empty() {
                    histogram.push(Bucket {
                        le_us,
                        count: upto - below,
                    });
                }
                below = upto;
                le_us *= 2;
            }
        }
        LatencySummary {
            count: self.0.len(),
            mean: self.0.mean() / 1000.0,
            p50: us(self.0.value_at_quantile(0.5)),
            p99: us(self.0.value_at_quantile(0.99)),
            max: us(self.0.max()),
            histogram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::on_wire::{latency_received, latency_sent};

    #[test]
    fn sums_up() {
        let mut latency = Latency::default();
        for us in [3, 3, 3, 100] {
            latency.record(Duration::from_micros(us));
        }
        let mut other = Latency::default();
        other.record(Duration::from_hours(30));
        let summary = latency.summary();
        assert_eq!(summary.count, 4);
        assert!((summary.mean - 27.25).abs() < 0.3, "{}", summary.mean);
        assert!((summary.p50 - 3.0).abs() < 0.1);
        assert_eq!(
            summary.histogram.first().unwrap(),
            &Bucket { le_us: 4, count: 3 }
        );
        assert_eq!(
            summary.histogram.last().unwrap(),
            &Bucket {
                le_us: 128,
                count: 1
            }
        );
        latency.merge(&other);
        assert_eq!(latency.summary().count, 5);
        let longest = latency.summary().max / 108e9;
        assert!((longest - 1.0).abs() < 0.01, "{longest}");
        let total: u64 = latency.summary().histogram.iter().map(|b| b.count).sum();
        assert_eq!(total, 5);
        let back = latency_received(latency_sent(&latency.summary()));
        assert_eq!(back.histogram, latency.summary().histogram);
        assert_eq!(back.count, 5);
    }

    #[test]
    fn nothing_is_nothing() {
        assert_eq!(Latency::default().summary(), LatencySummary::default());
    }
}
