//! Estimates how many pages are dirty, without reading the log.

use std::time::Duration;

/// What the takes of each range of memory have found, and how many pages are dirty by that.
///
/// A take that finds `n` pages dirty says how many different pages the guest writes in the time
/// `before` since the take before it. What the guest writes in the time `since` the take is
/// estimated from it. Let `d(t)` be the number of different pages that it writes in a time `t`, on
/// average. If the guest does the same all the time, then `d` grows, but less and less, because it
/// writes to some pages again. So with `x = since / before`, and because `d(before) = n`,
/// `d(since)` is between `n · x` (a guest that writes each page once) and `n` (one that writes the
/// same pages all the time). The estimate is `n · x^a`, with `a` from 0 to 1, and never more than
/// the pages of the range.
///
/// `a` is measured. Each take gives the true `d` at its time, to compare with both bounds by the
/// take before. If the sums of a round are `found`, `most` (of `n`) and `least` (of `n · x`), then
/// `found = most · (least / most)^a`, as far as `x` is about the same for all ranges. That says
/// something if the round was shorter than the one before. Until then `a` is 1/2: the geometric
/// mean, which is wrong by at most the factor `√x`, in either direction.
///
/// If the guest changes what it does, the estimate is wrong until the next round. Therefore the
/// guest is not paused because of it: the log is read before that.
#[derive(Debug)]
pub(crate) struct DirtyEstimate {
    ranges: Vec<Taken>,
    exponent: f64,
    /// Of the takes since the last estimate.
    sums: Sums,
}

/// The last take of one range. Times are from the start of the log.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    at: Duration,
    /// The time since the take before.
    before: Duration,
    /// The pages that were dirty.
    found: u64,
    /// All pages of the range.
    pages: u64,
}

/// What takes have found, and what they had to find by the takes before.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    found: f64,
    least: f64,
    most: f64,
}

/// `most / least` has to be this much for the exponent to be measured. The takes of a shorter round
/// say little: with 1.1, 1 % more pages would change the exponent by 0.1.
const MEASURABLE: f64 = 1.1;

impl DirtyEstimate {
    /// For a log of so many ranges that was just started.
    pub(crate) fn new(ranges: usize) -> Self {
        Self {
            ranges: vec![Taken::default(); ranges],
            exponent: 0.5,
            sums: Sums::default(),
        }
    }

    /// Records that a take of the range with this `number`, of `pages` pages, has found this many
    /// of them dirty. Returns the time since the take before.
    #[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
    pub(crate) fn taken(
        &mut self,
        number: usize,
        pages: u64,
        found: u64,
        at: Duration,
    ) -> Duration {
        let Some(range) = self.ranges.get_mut(number) else {
            return Duration::ZERO;
        };
        let x = range.scale(at);
        if x < 1.0 {
            self.sums.found += found as f64;
            self.sums.least += range.found as f64 * x;
            self.sums.most += range.found as f64;
        }
        *range = Taken {
            at,
            before: at.saturating_sub(range.at),
            found,
            pages,
        };
        range.before
    }

    /// The number of pages that are dirty at the time `now`, which is the end of a round.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Positive, and below 2^53.
    pub(crate) fn dirty(&mut self, now: Duration) -> u64 {
        if let Some(exponent) = std::mem::take(&mut self.sums).exponent() {
            self.exponent = exponent;
        }
        let dirty = self
            .ranges
            .iter()
            .map(|range| range.dirty(now, self.exponent));
        dirty.sum::<f64>().ceil() as u64
    }
}

impl Taken {
    /// The time from the take until `now`, in parts of the time before it.
    fn scale(&self, now: Duration) -> f64 {
        now.saturating_sub(self.at).as_secs_f64() / self.before.as_secs_f64().max(1e-9)
    }

    #[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
    fn dirty(&self, now: Duration, exponent: f64) -> f64 {
        if self.found == 0 {
            return 0.0;
        }
        (self.found as f64 * self.scale(now).powf(exponent)).min(self.pages as f64)
    }
}

impl Sums {
    /// The exponent; `None` if the sums do not determine it.
    fn exponent(self) -> Option<f64> {
        (self.least > 0.0 && self.most > self.least * MEASURABLE)
            .then(|| (self.most / self.found.max(1.0)).ln() / (self.most / self.least).ln())
            .map(|exponent| exponent.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss
)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const PAGES: u64 = 512;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Taken at 100 ms and at 200 ms, when 100 pages were dirty.
    fn hundred() -> DirtyEstimate {
        let mut estimate = DirtyEstimate::new(1);
        estimate.taken(0, PAGES, 0, ms(100));
        estimate.taken(0, PAGES, 100, ms(200));
        estimate
    }

    #[test]
    fn it_grows_with_the_time_since_the_take() {
        for (now, expected) in [
            (200, 0),
            (201, 10),
            (225, 50),
            (300, 100),
            (600, 200),
            (9000, 512),
        ] {
            assert_eq!(hundred().dirty(ms(now)), expected, "at {now} ms");
        }
    }

    #[test]
    fn a_guest_that_writes_nothing_leaves_nothing() {
        let mut estimate = DirtyEstimate::new(3);
        assert_eq!(estimate.dirty(ms(500)), 0, "not taken yet");
        for number in 0..3 {
            estimate.taken(number, PAGES, 0, ms(10));
        }
        assert_eq!(estimate.dirty(ms(500)), 0);
    }

    #[test]
    fn one_page_is_not_rounded_to_none() {
        let mut estimate = DirtyEstimate::new(1);
        estimate.taken(0, PAGES, 1, ms(1000));
        assert_eq!(estimate.dirty(ms(1001)), 1);
    }

    #[test]
    fn the_estimate_is_the_sum_of_the_ranges() {
        let mut estimate = DirtyEstimate::new(2);
        estimate.taken(0, PAGES, 100, ms(100));
        estimate.taken(1, 3, 2, ms(100));
        assert_eq!(estimate.dirty(ms(200)), 102);
        assert_eq!(estimate.dirty(ms(500)), 203, "the second range has 3 pages");
    }

    /// Different pages of a range that are written in a time, on average, if each group of them is
    /// written so many times a second, at random.
    fn written(groups: &[(u64, f64)], time: Duration) -> f64 {
        let pages =
            |&(pages, rate): &(u64, f64)| pages as f64 * (1.0 - (-rate * time.as_secs_f64()).exp());
        groups.iter().map(pages).sum()
    }

    /// Rounds of so many milliseconds over ranges that the guest writes like `ranges`. Calls `end`
    /// after each: with the estimate, the truth, and what may be dirty at least and at most by what
    /// was found, which is rounded to whole pages.
    fn rounds(
        ranges: &[Vec<(u64, f64)>],
        rounds: &[u64],
        mut end_of_round: impl FnMut(f64, f64, [f64; 2]),
    ) {
        let mut estimate = DirtyEstimate::new(ranges.len());
        let mut taken = vec![Duration::ZERO; ranges.len()];
        let mut begun = Duration::ZERO;
        for &round in rounds {
            let (mut truth, mut least, mut most) = (0.0, 0.0, 1.0);
            let end = begun + ms(round);
            for (number, groups) in ranges.iter().enumerate() {
                let at = begun + ms(round) * number as u32 / ranges.len() as u32;
                let before = at.saturating_sub(taken[number]);
                taken[number] = at;
                let found = written(groups, before).round();
                estimate.taken(number, PAGES, found as u64, at);
                let x = (end - at).as_secs_f64() / before.as_secs_f64().max(1e-9);
                truth += written(groups, end - at);
                least += (found - 0.5).min(PAGES as f64) * x.min(1.0);
                most += ((found + 0.5) * x.max(1.0)).min(PAGES as f64);
            }
            end_of_round(estimate.dirty(end) as f64, truth, [least, most]);
            begun = end;
        }
    }

    /// Guests of both kinds, in rounds of equal length and in ever shorter ones.
    #[test]
    fn it_is_about_right() {
        let at_random = vec![vec![(PAGES, 0.2)]; 64];
        let the_same_pages = vec![vec![(20, 1000.0)]; 64];
        for guest in [at_random, the_same_pages] {
            rounds(&guest, &[1000; 4], |estimate, truth, _| {
                let ratio = estimate / truth;
                assert!((0.6..1.6).contains(&ratio), "{estimate} for {truth}");
            });
            let mut round = 0;
            rounds(&guest, &[1000, 400, 160, 64], |estimate, truth, _| {
                round += 1;
                let ratio = estimate / truth;
                // From the second round on, the kind of guest is known.
                let bound = if round == 1 { 1.6 } else { 1.15 };
                assert!(
                    ratio < bound && ratio > 1.0 / bound,
                    "{estimate} for {truth}"
                );
            });
        }
    }

    proptest! {
        /// With guests of all kinds, from some hot pages to all pages at random.
        #[test]
        fn estimate_and_truth_are_within_the_bounds(
            ranges in vec(vec((1..100_u64, 0.01..1000.0_f64), 1..5), 1..40),
            lengths in vec(1..2000_u64, 1..6),
        ) {
            rounds(&ranges, &lengths, |estimate, truth, [least, most]| {
                assert!(least <= estimate && estimate <= most, "{least} {estimate} {most}");
                assert!(least <= truth && truth <= most, "{least} {truth} {most}");
            });
        }
    }
}
