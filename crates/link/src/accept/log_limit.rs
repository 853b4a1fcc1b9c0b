//! A rate limit for log messages about rejected connections.
//!
//! Any host can connect, as often as it likes; the log must not grow as fast. A burst of messages
//! is logged at once, later ones at most at an interval. The others are counted.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The size of a burst.
const AT_ONCE: u32 = 16;

/// The interval after which one more message may be logged.
const PAUSE: Duration = Duration::from_secs(10);

/// Logs rejected connections, within a rate limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogRateLimit(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// How many messages of the [`BURST`] are used up, and the time up to which intervals were
    /// credited.
    used: u32,
    since: Option<Instant>,
    /// Messages suppressed since the last one that was logged.
    unmentioned: u64,
}

impl LogRateLimit {
    /// Logs that a connection was rejected and why, if the rate limit allows it.
    pub(crate) fn turned_away(&self, peer: &dyn fmt::Display, error: &dyn fmt::Display) {
        let state = self.0.lock();
        let may = state
            .unwrap_or_else(PoisonError::into_inner)
            .take(Instant::now());
        match may {
            Some(0) => tracing::warn!(%peer, %error, "connection rejected"),
            Some(suppressed) => {
                tracing::warn!(%peer, %error, suppressed, "connection rejected, after others");
            }
            None => tracing::debug!(%peer, %error, "connection rejected"),
        }
    }
}

impl State {
    /// Whether one more message may be logged, and how many were suppressed before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let pauses = now.saturating_duration_since(since).as_secs() / PAUSE.as_secs();
        if pauses > 0 {
            let back = u32::try_from(pauses).unwrap_or(u32::MAX);
            self.used = self.used.saturating_sub(back);
            self.since = Some(now);
        }
        if self.used == AT_ONCE {
            self.unmentioned += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.unmentioned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_mentioned_and_then_one_now_and_then() {
        let mut state = State::default();
        let mut now = Instant::now();
        for _ in 0..AT_ONCE {
            assert_eq!(state.take(now), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(state.take(now), None);
        }
        now += PAUSE;
        assert_eq!(state.take(now), Some(1000));
        assert_eq!(state.take(now), None);
        // After a long time without messages the burst is as large as at first, not larger.
        now += 1000 * PAUSE;
        assert_eq!(state.take(now), Some(1));
        for _ in 1..AT_ONCE {
            assert_eq!(state.take(now), Some(0));
        }
        assert_eq!(state.take(now), None);
    }
}
