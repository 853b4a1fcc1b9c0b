//! How often strangers are mentioned.
//!
//! Anybody can come to the door, as often as they like: the log must not grow as
//! fast. So many are mentioned at once, later ones with a pause between them;
//! the rest is counted.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Mentioned one after the other.
const AT_ONCE: u32 = 16;

/// After so long one more may be.
const PAUSE: Duration = Duration::from_secs(10);

/// What is said about those who were turned away.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogRateLimit(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Of [`AT_ONCE`], how many were used, and since when none was given back.
    used: u32,
    since: Option<Instant>,
    /// Since the last one that was mentioned.
    unmentioned: u64,
}

impl LogRateLimit {
    /// Writes to the log that a connection was turned away and why, if that is
    /// not too much.
    pub(crate) fn turned_away(&self, peer: &dyn fmt::Display, error: &dyn fmt::Display) {
        let state = self.0.lock();
        let may = state
            .unwrap_or_else(PoisonError::into_inner)
            .take(Instant::now());
        match may {
            Some(0) => tracing::warn!(%peer, %error, "turned away"),
            Some(others) => tracing::warn!(%peer, %error, others, "turned away, after others"),
            None => tracing::debug!(%peer, %error, "turned away"),
        }
    }
}

impl State {
    /// Whether one more may be mentioned, and how many were not before it.
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
        // After a long silence as many as at first, and no more.
        now += 1000 * PAUSE;
        assert_eq!(state.take(now), Some(1));
        for _ in 1..AT_ONCE {
            assert_eq!(state.take(now), Some(0));
        }
        assert_eq!(state.take(now), None);
    }
}
