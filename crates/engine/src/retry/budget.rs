//! How long to wait for lost links.

use std::time::{Duration, Instant};

/// Between the first two attempts to connect. The guest may be waiting for a page, so a short
/// outage is noticed soon.
const SOON: Duration = Duration::from_millis(10);

/// The longest pause between two attempts; each pause is twice the one before. After links that
/// lasted as long, the next pause is [`SOON`] again.
const AGAIN: Duration = Duration::from_millis(640);

/// The time without links, compared with a limit.
///
/// Time with links makes up for as much time without them. So links that fail now and then are
/// tolerated without a limit, and links that are lost again at once are not.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    limit: Duration,
    /// How much of the limit is used up.
    used: Duration,
    /// Since when the links have been up or down.
    since: Instant,
    up: bool,
    /// The pause before the next attempt.
    pause: Duration,
}

impl RetryBudget {
    /// A budget of `limit`; links are up at `now`.
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            used: Duration::ZERO,
            since: now,
            up: true,
            pause: Duration::ZERO,
        }
    }

    /// The links are lost: returns how long to wait for new ones.
    pub(crate) fn lost(&mut self, now: Instant) -> Duration {
        if self.up {
            let held = now.saturating_duration_since(self.since);
            self.used = self.used.saturating_sub(held);
            if held >= AGAIN {
                self.pause = Duration::ZERO;
            }
            (self.since, self.up) = (now, false);
        }
        let left = self.limit.saturating_sub(self.used);
        // Even links that are lost at once exist for a moment, so a little time is always left, too
        // little for an attempt.
        if left < self.pause {
            return Duration::ZERO;
        }
        left
    }

    /// The links are up again.
    pub(crate) fn back(&mut self, now: Instant) {
        if !self.up {
            let missed = now.saturating_duration_since(self.since);
            self.used = self.limit.min(self.used.saturating_add(missed));
            (self.since, self.up) = (now, true);
        }
    }

    /// How long to wait before the next attempt: zero before the first one.
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
            // As long as a handshake takes.
            now += SECOND / 200;
        }
        // 10 ms, 20 ms, … 320 ms; then three in 1.92 s.
        assert!((15..30).contains(&attempts), "{attempts} attempts");
        // Calling it again does not return more.
        assert_eq!(retry_budget.lost(now), Duration::ZERO);
    }

    #[test]
    fn time_with_links_makes_up_for_time_without() {
        let start = Instant::now();
        let mut retry_budget = RetryBudget::new(10 * SECOND, start);
        assert_eq!(retry_budget.lost(start), 10 * SECOND);
        retry_budget.back(start + 6 * SECOND);
        assert_eq!(retry_budget.lost(start + 7 * SECOND), 5 * SECOND);
        // No more than the whole budget can be used up or made up for.
        retry_budget.back(start + 1000 * SECOND);
        assert_eq!(retry_budget.lost(start + 1003 * SECOND), 3 * SECOND);
        retry_budget.back(start + 1004 * SECOND);
        assert_eq!(retry_budget.lost(start + 2000 * SECOND), 10 * SECOND);
    }
}
