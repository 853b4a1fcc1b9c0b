//! How many different pages a guest writes in a time: [`WorkingSet`].

use hikkoshi_dirty_rate::{Measurement, Window};

use crate::float::float;
use crate::span::Scenario;

/// If only a sample of the memory was measured, the numbers may be wrong by this part: the tests of
/// `dirty-rate` allow as much.
const SAMPLING_ERROR: f64 = 0.25;

/// The number of different pages that are written in a window of time, as measured for some
/// windows, in between and beyond.
///
/// Between two measured windows the curve is a power law (a straight line on a logarithmic scale).
/// Before the first window, the exponent is that after it; beyond the last, that before it. A guest
/// that writes each page once has the exponent 1, one that writes the same pages all the time 0.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkingSet {
    easy: Curve,
    likely: Curve,
    hard: Curve,
    measured: f64,
}

impl WorkingSet {
    /// The working sets of a measurement.
    ///
    /// The likely curve has the mean of the windows of each length. The other two have the largest
    /// window, and as much below the mean. If only a sample was measured, a quarter is added and
    /// subtracted. Beyond the longest window one of them is flat, and the other grows linearly.
    #[must_use]
    pub fn of_measurement(measurement: &Measurement) -> Self {
        let total = &measurement.total;
        let error = if total.measured_pages < total.pages {
            SAMPLING_ERROR
        } else {
            0.0
        };
        Self::new(&total.windows, float(total.pages), error)
    }

    fn new(windows: &[Window], pages: f64, error: f64) -> Self {
        let points = |value: &dyn Fn(&Window) -> f64| -> Vec<(f64, f64)> {
            let mut least: f64 = 0.0;
            windows
                .iter()
                .map(|window| {
                    // A longer window never has fewer pages.
                    least = least.max(value(window)).min(pages);
                    (window.mean_length.as_secs_f64().max(1e-6), least)
                })
                .collect()
        };
        let low = |window: &Window| {
            let below = (2.0 * window.mean - window.max).max(window.mean / 2.0);
            below * (1.0 - error)
        };
        Self {
            easy: Curve::new(points(&low), pages, Some(0.0)),
            likely: Curve::new(points(&|window| window.mean), pages, None),
            hard: Curve::new(
                points(&|window| window.max * (1.0 + error)),
                pages,
                Some(1.0),
            ),
            measured: windows
                .last()
                .map_or(0.0, |window| window.mean_length.as_secs_f64()),
        }
    }

    /// The likely number of different pages in a window of so many seconds.
    #[must_use]
    pub fn pages(&self, seconds: f64) -> f64 {
        self.likely.pages(seconds)
    }

    /// The longest window that was measured, in seconds.
    #[must_use]
    pub fn measured_seconds(&self) -> f64 {
        self.measured
    }

    pub(crate) fn curve(&self, scenario: Scenario) -> &Curve {
        match scenario {
            Scenario::Easy => &self.easy,
            Scenario::Likely => &self.likely,
            Scenario::Hard => &self.hard,
        }
    }
}

/// The curve in one scenario.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    /// Seconds and pages, both ascending.
    points: Vec<(f64, f64)>,
    /// The exponent beyond the last point.
    tail: f64,
    most: f64,
}

impl Curve {
    fn new(points: Vec<(f64, f64)>, most: f64, tail: Option<f64>) -> Self {
        let exponent = match points[..] {
            [.., before, last] => exponent(before, last),
            _ => 1.0,
        };
        Self {
            points,
            tail: tail.unwrap_or(exponent),
            most,
        }
    }

    /// The number of different pages in a window of so many seconds.
    pub(crate) fn pages(&self, seconds: f64) -> f64 {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        if seconds <= 0.0 {
            return 0.0;
        }
        let after = self.points.iter().position(|point| point.0 >= seconds);
        let pages = match after {
            Some(0) => {
                let slope = match self.points.get(1) {
                    Some(second) => exponent(*first, *second),
                    None => 1.0,
                };
                first.1 * (seconds / first.0).powf(slope)
            }
            Some(after) => match (self.points.get(after - 1), self.points.get(after)) {
                (Some(&before), Some(&after)) => {
                    before.1 * (seconds / before.0).powf(exponent(before, after))
                        + spread(before, after, seconds)
                }
                _ => last.1,
            },
            None => last.1 * (seconds / last.0).powf(self.tail),
        };
        pages.min(self.most)
    }

    /// How many pages a second are written for the first time in a window, at its end.
    pub(crate) fn growth(&self, seconds: f64) -> f64 {
        let step = (seconds * 0.02).max(1e-4);
        (self.pages(seconds + step) - self.pages(seconds)) / step
    }

    /// The mean number of pages that are dirty in a range of memory whose log was taken `from` to
    /// `until` seconds ago, evenly spread.
    pub(crate) fn mean_pages(&self, from: f64, until: f64) -> f64 {
        const STEPS: u32 = 16;
        let at = |step| (f64::from(step) + 0.5) / f64::from(STEPS);
        let pages = (0..STEPS).map(|step| self.pages(from + (until - from) * at(step)));
        pages.sum::<f64>() / f64::from(STEPS)
    }
}

/// The exponent of the power law through two points.
fn exponent(one: (f64, f64), two: (f64, f64)) -> f64 {
    if one.1 <= 0.0 || two.0 <= one.0 {
        return 1.0;
    }
    ((two.1 / one.1).ln() / (two.0 / one.0).ln()).clamp(0.0, 1.0)
}

/// What the power law lacks because its exponent is limited to 1 (a burst that only longer windows
/// contain, or no page at all in the shorter window): spread linearly.
fn spread(before: (f64, f64), after: (f64, f64), seconds: f64) -> f64 {
    let reached = before.1 * (after.0 / before.0).powf(exponent(before, after));
    (after.1 - reached).max(0.0) * (seconds - before.0) / (after.0 - before.0).max(1e-9)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::time::Duration;

    /// Windows of 0.1, 0.2, 0.5, 1 and 2 s of a guest of so many pages.
    pub(crate) fn measured(pages: f64, written: impl Fn(f64) -> f64) -> WorkingSet {
        let windows: Vec<_> = [1, 2, 5, 10, 20]
            .map(|intervals| {
                let seconds = f64::from(intervals) / 10.0;
                Window {
                    intervals,
                    mean_length: Duration::from_secs_f64(seconds),
                    windows: 21 - intervals,
                    mean: written(seconds),
                    max: written(seconds) * 1.02,
                }
            })
            .to_vec();
        WorkingSet::new(&windows, pages, 0.0)
    }

    /// A guest that writes so many pages a second at random, out of `among`.
    pub(crate) fn at_random(pages: f64, rate: f64, among: f64) -> WorkingSet {
        measured(pages, |seconds| {
            among * (1.0 - (-rate * seconds / among).exp())
        })
    }

    #[test]
    fn known_guests_are_followed_in_between_and_beyond() {
        let each_page_once = measured(1e6, |seconds| 1000.0 * seconds);
        let the_same_pages = measured(1e6, |_| 500.0);
        for seconds in [0.003, 0.05, 0.14, 0.7, 1.9, 8.0] {
            let pages = each_page_once.pages(seconds);
            assert!((pages / (1000.0 * seconds) - 1.0).abs() < 1e-6, "{pages}");
            assert!((the_same_pages.pages(seconds) - 500.0).abs() < 1e-6);
        }
        let random = at_random(1e6, 20_000.0, 30_000.0);
        for seconds in [0.02, 0.15, 0.7, 1.4, 3.0] {
            let truth = 30_000.0 * (1.0 - f64::exp(-20_000.0 * seconds / 30_000.0));
            let ratio = random.pages(seconds) / truth;
            assert!((0.85..1.15).contains(&ratio), "{seconds} s: {ratio}");
        }
        assert_eq!(measured(1e6, |_| 0.0).pages(3.0), 0.0);
    }

    #[test]
    fn a_burst_in_the_longest_window_only_is_not_lost() {
        let burst = measured(1e6, |seconds| if seconds > 1.5 { 4000.0 } else { 0.0 });
        assert!((burst.pages(2.0) - 4000.0).abs() < 1.0);
        assert!(burst.pages(1.5) > 1000.0 && burst.pages(0.5) == 0.0);
    }

    #[test]
    fn the_ends_are_on_both_sides() {
        let set = at_random(1e6, 20_000.0, 30_000.0);
        for seconds in [0.01, 0.1, 0.3, 2.0, 5.0, 60.0] {
            let of = |scenario| set.curve(scenario).pages(seconds);
            assert!(of(Scenario::Easy) <= of(Scenario::Likely), "{seconds}");
            assert!(of(Scenario::Likely) <= of(Scenario::Hard), "{seconds}");
        }
    }

    proptest! {
        /// Whatever was measured: a longer window never has fewer pages, and none has more than the
        /// guest.
        #[test]
        fn curves_grow_up_to_all_pages(
            sets in vec((0.0..1e5_f64, 1.0..3.0_f64), 0..8),
            times in vec(0.0..1000.0_f64, 2..20),
        ) {
            let windows: Vec<_> = sets.iter().zip(1..).map(|(&(mean, factor), intervals)| Window {
                intervals,
                mean_length: Duration::from_millis(100) * intervals,
                windows: 1,
                mean,
                max: mean * factor,
            }).collect();
            let set = WorkingSet::new(&windows, 50_000.0, 0.25);
            let mut times = times;
            times.sort_by(f64::total_cmp);
            for scenario in Scenario::ALL {
                let curve = set.curve(scenario);
                let pages: Vec<_> = times.iter().map(|&time| curve.pages(time)).collect();
                prop_assert!(pages.iter().all(|&pages| (0.0..=50_000.0).contains(&pages)));
                prop_assert!(pages.windows(2).all(|pair| pair[0] <= pair[1] * (1.0 + 1e-9)), "{pages:?}");
                prop_assert!(curve.growth(times[0]) >= -1e-6);
                let mean = curve.mean_pages(times[0], times[1]);
                prop_assert!(mean <= curve.pages(times[1]) * (1.0 + 1e-9) + 1e-9);
            }
        }
    }
}
