//! Rates over the last second, and how much they vary.

use std::collections::VecDeque;
use std::time::Duration;

/// The time over which the present rate is taken.
const PRESENT: Duration = Duration::from_secs(1);

/// The time over which the best and the worst rate are looked for.
const RECENT: Duration = Duration::from_secs(10);

/// What a page of zeros takes: 0.3 µs to read it, more on a busy host, and nothing if it is a hole.
const ZERO_PAGE: Duration = Duration::from_nanos(500);

/// A count that grows, and its rate.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// When, and the count then: the last second.
    counts: VecDeque<(Duration, u64)>,
    /// Zeros so far.
    zeros: u64,
    /// The time that they have taken.
    on_zeros: Duration,
    /// When, and the rate then: the last ten seconds.
    rates: VecDeque<(Duration, f64)>,
    /// The present rate is taken over so much at least, or over ten seconds: a slow line carries a
    /// few pieces in a second.
    least: u64,
    /// When it was counted first.
    begun: Option<Duration>,
}

/// Rates per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    /// Over the last second.
    pub(super) present: f64,
    /// The lowest over the last ten seconds.
    pub(super) worst: f64,
    /// The highest over the last ten seconds.
    pub(super) best: f64,
    /// For how long they have been known: in the first seconds connections are slower than later,
    /// or buffers take more than the line carries.
    pub(super) known_for: Duration,
}

impl Rate {
    /// Of what is counted in so large pieces that a second has some of them on a fast line only.
    pub(super) fn of_pieces(least: u64) -> Self {
        Self {
            least,
            ..Self::default()
        }
    }

    /// The count is `count` at this time, and so many pages of zeros were found between what is
    /// counted. Times ascend.
    ///
    /// Zeros take little time, but a second in which nothing else was found says nothing about the
    /// rate of the rest.
    pub(super) fn add_between_zeros(&mut self, at: Duration, count: u64, zeros: u64) -> Rates {
        let more = zeros.saturating_sub(self.zeros);
        let time = ZERO_PAGE.saturating_mul(u32::try_from(more).unwrap_or(u32::MAX));
        // The time without that.
        let now = at.saturating_sub(self.on_zeros);
        let last = self.counts.back().map_or(now, |(last, _)| *last);
        let time = time.min(now.saturating_sub(last));
        (self.zeros, self.on_zeros) = (zeros, self.on_zeros + time);
        self.add(now.saturating_sub(time), count)
    }

    /// The count is `count` at this time. Times ascend.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn add(&mut self, at: Duration, count: u64) -> Rates {
        self.counts.push_back((at, count));
        let is_enough = |(second, before): &(Duration, u64)| {
            let time = at.saturating_sub(*second);
            time >= PRESENT && (time >= RECENT || count.saturating_sub(*before) >= self.least)
        };
        while self.counts.get(1).is_some_and(is_enough) {
            self.counts.pop_front();
        }
        let begun = *self.begun.get_or_insert(at);
        let (from, before) = self.counts.front().copied().unwrap_or((at, count));
        let seconds = at.saturating_sub(from).as_secs_f64();
        let present = match seconds > 0.0 {
            true => count.saturating_sub(before) as f64 / seconds,
            false => 0.0,
        };
        // Over less than half a second, a rate says little.
        if seconds >= PRESENT.as_secs_f64() / 2.0 {
            self.rates.push_back((at, present));
        }
        while self
            .rates
            .front()
            .is_some_and(|(first, _)| at.saturating_sub(*first) > RECENT)
        {
            self.rates.pop_front();
        }
        let of_all = |pick: fn(f64, f64) -> f64| {
            let rates = self.rates.iter().map(|(_, rate)| *rate);
            rates.fold(present, pick)
        };
        Rates {
            present,
            worst: of_all(f64::min),
            best: of_all(f64::max),
            known_for: at.saturating_sub(begun),
        }
    }

    /// What was counted before says nothing about what follows.
    pub(super) fn forget(&mut self) {
        *self = Self::of_pieces(self.least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenths(number: u64) -> Duration {
        Duration::from_millis(number * 100)
    }

    #[test]
    fn a_rate_is_that_of_the_last_second() {
        let mut rate = Rate::default();
        assert_eq!(rate.add(tenths(0), 50).present, 0.0);
        for tenth in 1..=30 {
            let rates = rate.add(tenths(tenth), 50 + tenth * 10);
            assert!((rates.present - 100.0).abs() < 1e-6, "{rates:?}");
        }
        // Twice as fast: a second later that is the rate.
        let mut last = Rates::default();
        for tenth in 1..=10 {
            last = rate.add(tenths(30 + tenth), 350 + tenth * 20);
        }
        assert!((last.present - 200.0).abs() < 1e-6, "{last:?}");
        assert!((last.best - 200.0).abs() < 1e-6 && (last.worst - 100.0).abs() < 1e-6);
    }

    /// 256 pages every 0.4 s: in a second are two pieces, or three.
    #[test]
    fn a_few_pieces_in_a_second_are_counted_over_a_longer_time() {
        let mut rate = Rate::of_pieces(4096);
        for tenth in 0..200 {
            let rates = rate.add(tenths(tenth), tenth / 4 * 256);
            assert_eq!(rates.known_for, tenths(tenth));
            if tenth > 70 {
                assert!((rates.present / 640.0 - 1.0).abs() < 0.07, "{rates:?}");
            }
        }
    }

    /// 10,000 pages with content a second, then a second of zeros, and again.
    #[test]
    fn zeros_do_not_change_the_rate_of_the_rest() {
        let mut rate = Rate::default();
        let (mut count, mut zeros) = (0, 0);
        for tenth in 0..80 {
            match tenth / 20 % 2 {
                0 => count += 1000,
                // 0.4 µs each.
                _ => zeros += 250_000,
            }
            let rates = rate.add_between_zeros(tenths(tenth), count, zeros);
            if tenth > 0 {
                assert!((rates.present - 10_000.0).abs() < 1.0, "{tenth}: {rates:?}");
                assert!(rates.worst > 9999.0 && rates.best < 10_001.0, "{rates:?}");
            }
        }
        // Nothing at all is no zeros.
        let mut last = Rates::default();
        for tenth in 80..100 {
            last = rate.add_between_zeros(tenths(tenth), count, zeros);
        }
        assert!(last.present < 1.0, "{last:?}");
    }

    #[test]
    fn old_rates_do_not_count() {
        let mut rate = Rate::default();
        let mut count = 0;
        for tenth in 0..50 {
            count += 1000;
            rate.add(tenths(tenth), count);
        }
        let mut last = Rates::default();
        for tenth in 50..200 {
            count += 10;
            last = rate.add(tenths(tenth), count);
        }
        assert!((last.best - 100.0).abs() < 1e-6, "{last:?}");
    }
}
