//! Collects the values of intervals and windows.

use std::time::Duration;

use crate::measurement::{PagesPerSecond, Rates, Window};

/// A number of pages as a floating-point number: exact below 2^53.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(pages: u64) -> f64 {
    pages as f64
}

/// The number of pages of a sample, extrapolated to all pages.
pub(crate) fn extrapolate(found: u64, sampled: u64, all: u64) -> f64 {
    if sampled == 0 {
        return 0.0;
    }
    float(found) * (float(all) / float(sampled))
}

/// The values of a block, or of all blocks.
#[derive(Debug, Clone)]
pub(crate) struct Collected {
    rates: Vec<f64>,
    pages: f64,
    seconds: f64,
    windows: Vec<Sums>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    windows: u32,
    pages: f64,
    max: f64,
    length: Duration,
}

impl Collected {
    pub(crate) fn new(lengths: usize) -> Self {
        Self {
            rates: Vec::new(),
            pages: 0.0,
            seconds: 0.0,
            windows: vec![Sums::default(); lengths],
        }
    }

    /// An interval has found this many dirty pages.
    pub(crate) fn interval(&mut self, pages: f64, length: Duration) {
        let seconds = length.as_secs_f64().max(1e-9);
        self.rates.push(pages / seconds);
        self.pages += pages;
        self.seconds += seconds;
    }

    /// A window with the length of this number has found this many different pages.
    pub(crate) fn window(&mut self, number: usize, pages: f64, length: Duration) {
        if let Some(sums) = self.windows.get_mut(number) {
            sums.windows += 1;
            sums.pages += pages;
            sums.max = sums.max.max(pages);
            sums.length += length;
        }
    }

    /// The result. `last`: the window of the whole measurement, if it ended before that length was
    /// reached.
    pub(crate) fn rates(
        mut self,
        pages: u64,
        measured_pages: u64,
        lengths: &[u32],
        last: Option<Window>,
    ) -> Rates {
        let windows = self.windows.iter().zip(lengths);
        let windows = windows.filter(|(sums, _)| sums.windows > 0);
        let windows = windows.map(|(sums, intervals)| Window {
            intervals: *intervals,
            mean_length: sums.length / sums.windows,
            windows: sums.windows,
            mean: sums.pages / f64::from(sums.windows),
            max: sums.max,
        });
        let windows = windows.chain(last).collect();
        self.rates.sort_by(f64::total_cmp);
        Rates {
            pages,
            measured_pages,
            pages_per_second: PagesPerSecond {
                mean: self.pages / self.seconds.max(1e-9),
                median: median(&self.rates),
                max: self.rates.last().copied().unwrap_or(0.0),
            },
            windows,
        }
    }
}

/// The median of sorted numbers; 0 if there are none.
fn median(sorted: &[f64]) -> f64 {
    let upper = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => at(upper),
        _ => f64::midpoint(at(upper - 1), at(upper)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_middle() {
        assert_eq!(median(&[]).to_bits(), 0.0_f64.to_bits());
        for (numbers, middle) in [
            (&[3.0][..], 3.0),
            (&[1.0, 5.0], 3.0),
            (&[1.0, 2.0, 9.0], 2.0),
        ] {
            assert!((median(numbers) - middle).abs() < 1e-9);
        }
    }

    #[test]
    fn a_sample_of_a_quarter_counts_four_times() {
        assert!((extrapolate(3, 25, 100) - 12.0).abs() < 1e-9);
        assert!(extrapolate(0, 0, 100).abs() < 1e-9);
    }
}
