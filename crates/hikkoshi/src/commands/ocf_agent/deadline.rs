//! The time that an action has.

use std::time::{Duration, Instant};

/// The time if Pacemaker does not say it: the agent was called by hand.
const BY_HAND: Duration = Duration::from_secs(600);

/// How often what is waited for is looked at.
const POLL: Duration = Duration::from_millis(200);

/// When an action must have ended. Pacemaker kills it later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    begun: Instant,
    at: Instant,
}

impl Deadline {
    /// By the timeout in milliseconds that Pacemaker gives (`OCF_RESKEY_CRM_meta_timeout`). A tenth
    /// of it, at most 5 s, remains for what is done at the end.
    pub(super) fn new(timeout_ms: Option<&str>) -> Self {
        let given = timeout_ms.and_then(|text| text.trim().parse().ok());
        let whole = given.map_or(BY_HAND, Duration::from_millis);
        let reserve = (whole / 10).min(Duration::from_secs(5));
        let begun = Instant::now();
        Self {
            begun,
            at: begun + (whole - reserve),
        }
    }

    /// An earlier one: `reserve` before this one, but not before half of its time.
    pub(super) fn earlier(self, reserve: Duration) -> Self {
        let whole = self.at.saturating_duration_since(self.begun);
        Self {
            at: self.begun + whole.saturating_sub(reserve).max(whole / 2),
            ..self
        }
    }

    /// This one, or `limit` from now on if that is earlier.
    pub(super) fn within(self, limit: Duration) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            at: self.at.min(begun + limit),
        }
    }

    /// Whether it is over.
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    /// How much time is left.
    pub(super) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Waits a moment. Returns whether there is time left.
    pub(super) fn pause(self) -> bool {
        std::thread::sleep(POLL.min(self.left()));
        !self.is_over()
    }

    /// Waits until `is_done`. Returns whether it is, in time.
    pub(super) fn wait(self, mut is_done: impl FnMut() -> bool) -> bool {
        loop {
            if is_done() {
                return true;
            }
            if !self.pause() {
                return is_done();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_ends_before_it_is_killed() {
        for (given, most) in [
            (Some("1000"), 900),
            (Some("600000"), 595_000),
            (None, 595_000),
        ] {
            let deadline = Deadline::new(given);
            assert_eq!(deadline.at - deadline.begun, Duration::from_millis(most));
        }
        assert!(Deadline::new(Some("0")).is_over());
        let deadline = Deadline::new(Some("100000"));
        let whole = deadline.at - deadline.begun;
        let earlier = deadline.earlier(Duration::from_secs(20));
        assert_eq!(earlier.at - earlier.begun, whole - Duration::from_secs(20));
        let half = deadline.earlier(Duration::from_secs(3600));
        assert_eq!(half.at - half.begun, whole / 2);
        assert!(deadline.within(Duration::ZERO).is_over());
    }
}
