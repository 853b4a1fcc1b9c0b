//! A rate limit for log messages about rejected connections.
//!
//! Any host can connect, as often as it likes; the log must not grow as fast. A burst of messages
//! is logged at once, later ones at most at an interval. The others are counted.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The size of a burst.
const BURST: u32 = 16;

/// The interval after which one more message may be logged.
const INTERVAL: Duration = Duration::from_secs(10);

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
    suppressed: u64,
}

impl LogRateLimit {
    /// Logs that a connection was rejected and why, if the rate limit allows it.
    pub(crate) fn log_rejection(&self, peer: &dyn fmt::Display, reason: &dyn fmt::Display) {
        let state = self.0.lock();
        let allowed = state
            .unwrap_or_else(PoisonError::into_inner)
            .allow(Instant::now());
        match allowed {
            Some(0) => tracing::warn!(%peer, error = %reason, "connection rejected"),
            Some(suppressed) => {
                tracing::warn!(%peer, error = %reason, suppressed, "connection rejected, after others");
            }
            None => tracing::debug!(%peer, error = %reason, "connection rejected"),
        }
    }
}

impl State {
    /// Whether one more message may be logged, and how many were suppressed before it.
    fn allow(&mut self, now: Instant) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let intervals = now.saturating_duration_since(since).as_secs() / INTERVAL.as_secs();
        if intervals > 0 {
            let credit = u32::try_from(intervals).unwrap_or(u32::MAX);
            self.used = self.used.saturating_sub(credit);
            self.since = Some(now);
        }
        if self.used == BURST {
            self.suppressed += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_logged_and_then_one_message_an_interval() {
        let mut state = State::default();
        let mut now = Instant::now();
        for _ in 0..BURST {
            assert_eq!(state.allow(now), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(state.allow(now), None);
        }
        now += INTERVAL;
        assert_eq!(state.allow(now), Some(1000));
        assert_eq!(state.allow(now), None);
        // After a long time without messages the burst is as large as at first, not larger.
        now += 1000 * INTERVAL;
        assert_eq!(state.allow(now), Some(1));
        for _ in 1..BURST {
            assert_eq!(state.allow(now), Some(0));
        }
        assert_eq!(state.allow(now), None);
    }
}
