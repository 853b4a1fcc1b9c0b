//! For how long links that were lost are waited for.

use std::time::{Duration, Instant};

/// Between the first two attempts to make links again. The guest may be waiting
/// for a page: what was mended soon is found soon.
const SOON: Duration = Duration::from_millis(10);

/// The longest between two attempts; each pause is twice the one before. Links
/// that hold for as long begin with [`SOON`] again.
const AGAIN: Duration = Duration::from_millis(640);

/// The time without links, set against what is waited for in all.
///
/// Time with links makes up for as much time without them. So a line that
/// breaks now and then is borne without end, and one that can be made but is
/// lost at once is not.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    patience: Duration,
    /// What of the patience is used up.
    used: Duration,
    /// Since when the links have been there, or not.
    since: Instant,
    up: bool,
    /// Before the next attempt.
    pause: Duration,
}

impl RetryBudget {
    /// Waits `patience` for links that are there, or are waited for without end.
    pub(crate) fn new(patience: Duration, now: Instant) -> Self {
        Self {
            patience,
            used: Duration::ZERO,
            since: now,
            up: true,
            pause: Duration::ZERO,
        }
    }

    /// The links are lost: for how long to wait for others.
    pub(crate) fn lost(&mut self, now: Instant) -> Duration {
        if self.up {
            let held = now.saturating_duration_since(self.since);
            self.used = self.used.saturating_sub(held);
            if held >= AGAIN {
                self.pause = Duration::ZERO;
            }
            (self.since, self.up) = (now, false);
        }
        let left = self.patience.saturating_sub(self.used);
        // Even links that are lost at once are there for a moment, and so there is
        // always a little left: no attempt fits into it.
        if left < self.pause {
            return Duration::ZERO;
        }
        left
    }

    /// The links are there again.
    pub(crate) fn back(&mut self, now: Instant) {
        if !self.up {
            let missed = now.saturating_duration_since(self.since);
            self.used = self.patience.min(self.used.saturating_add(missed));
            (self.since, self.up) = (now, true);
        }
    }

    /// How long to wait before the next attempt: not at all before the first
    /// one.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).clamp(SOON, AGAIN);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn links_that_hold_for_as_long_as_they_were_missed_are_borne_without_end() {
        let mut now = Instant::now();
        let mut retry_budget = RetryBudget::new(10 * SECOND, now);
        for _ in 0..1000 {
            now += 5 * SECOND;
            assert_eq!(retry_budget.lost(now), 10 * SECOND);
            assert_eq!(retry_budget.pause(), Duration::ZERO);
            now += 5 * SECOND;
            retry_budget.back(now);
        }
    }

    #[test]
    fn links_that_are_lost_at_once_are_not() {
        let mut now = Instant::now();
        let mut retry_budget = RetryBudget::new(10 * SECOND, now);
        let mut attempts = 0;
        while retry_budget.lost(now) > Duration::ZERO {
            attempts += 1;
            now += retry_budget.pause();
            retry_budget.back(now);
            // For as long as a greeting takes.
            now += SECOND / 200;
        }
        // 10 ms, 20 ms, … 320 ms; then three in 1.92 s.
        assert!((15..30).contains(&attempts), "{attempts} attempts");
        // Asked for again, it is not more.
        assert_eq!(retry_budget.lost(now), Duration::ZERO);
    }

    #[test]
    fn time_with_links_makes_up_for_time_without() {
        let start = Instant::now();
        let mut retry_budget = RetryBudget::new(10 * SECOND, start);
        assert_eq!(retry_budget.lost(start), 10 * SECOND);
        retry_budget.back(start + 6 * SECOND);
        assert_eq!(retry_budget.lost(start + 7 * SECOND), 5 * SECOND);
        // More than all of it cannot be used up, nor be made up for.
        retry_budget.back(start + 1000 * SECOND);
        assert_eq!(retry_budget.lost(start + 1003 * SECOND), 3 * SECOND);
        retry_budget.back(start + 1004 * SECOND);
        assert_eq!(retry_budget.lost(start + 2000 * SECOND), 10 * SECOND);
    }
}
