//! Latencies of page requests.

use hikkoshi_account::{Bucket, LatencySummary};

/// Latencies, in µs, as an engine counts them.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    micros: Vec<f64>,
    random: u64,
}

impl Latencies {
    /// Adds a request: most take 40 to 130 µs, one in fifty much longer.
    pub fn add(&mut self) {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_041);
        let unit = f64::from(u32::try_from(self.random >> 33).unwrap()) / f64::from(1_u32 << 31);
        let slow = if (self.random >> 20).is_multiple_of(50) {
            14.0
        } else {
            1.0
        };
        self.micros.push((38.0 + 95.0 * unit * unit) * slow);
    }

    /// Adds a request that took so long.
    pub fn add_micros(&mut self, micros: f64) {
        self.micros.push(micros);
    }

    /// The summary, as an engine makes it.
    #[allow(clippy::cast_precision_loss)] // A mean.
    pub fn requests(&self) -> LatencySummary {
        let mut sorted = self.micros.clone();
        sorted.sort_by(f64::total_cmp);
        let (Some(max), count) = (sorted.last().copied(), sorted.len()) else {
            return LatencySummary::default();
        };
        let mut histogram: Vec<Bucket> = Vec::new();
        let mut le_us = 1_u64;
        for micros in &sorted {
            while *micros > le_us as f64 {
                le_us *= 2;
                if !histogram.is_empty() {
                    histogram.push(Bucket { le_us, count: 0 });
                }
            }
            match histogram.last_mut() {
                Some(bucket) => bucket.count += 1,
                None => histogram.push(Bucket { le_us, count: 1 }),
            }
        }
        LatencySummary {
            count: count as u64,
            mean: sorted.iter().sum::<f64>() / count as f64,
            p50: sorted[count / 2],
            p99: sorted[count * 99 / 100],
            max,
            histogram,
        }
    }
}
