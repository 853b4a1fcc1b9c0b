//! Whether somebody waits for a page right now, or did a moment ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After a request the guest is likely to make another one soon: for so long
/// background links stay small.
const RECENT: Duration = Duration::from_millis(50);

/// Told by the threads that answer requests, heeded by background links.
///
/// Only hints pass here: whatever is seen late or not at all costs time and
/// nothing else, so every access is relaxed.
#[derive(Debug, Clone)]
pub struct UrgentActivity(Arc<State>);

#[derive(Debug)]
struct State {
    unanswered: AtomicU32,
    /// Nanoseconds from `zero` to the last answer; 0: there was none.
    last: AtomicU64,
    zero: Instant,
}

impl Default for UrgentActivity {
    fn default() -> Self {
        Self::new()
    }
}

/// A request is being answered until this is dropped.
#[derive(Debug)]
#[must_use = "the request counts as answered when this is dropped"]
pub struct Answering<'a>(&'a UrgentActivity);

impl UrgentActivity {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self(Arc::new(State {
            unanswered: AtomicU32::new(0),
            last: AtomicU64::new(0),
            zero: Instant::now(),
        }))
    }

    /// A moment that all who share this agree on.
    pub(crate) fn zero(&self) -> Instant {
        self.0.zero
    }

    /// A request was read; the guard is dropped when the answer is sent.
    pub fn begin(&self) -> Answering<'_> {
        self.0.unanswered.fetch_add(1, Ordering::Relaxed);
        Answering(self)
    }

    /// Whether a request is being answered at this moment.
    pub fn unanswered(&self) -> bool {
        self.0.unanswered.load(Ordering::Relaxed) > 0
    }

    /// Whether one is, or was a short while before `now`.
    pub(super) fn is_pressing(&self, now: Instant) -> bool {
        let last = self.0.last.load(Ordering::Relaxed);
        let recent = last > 0
            && now.saturating_duration_since(self.0.zero + Duration::from_nanos(last)) < RECENT;
        recent || self.unanswered()
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        let state = &*self.0.0;
        let passed = u64::try_from(state.zero.elapsed().as_nanos()).unwrap_or(u64::MAX);
        state.last.fetch_max(passed.max(1), Ordering::Relaxed);
        state.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn presses_from_the_request_until_some_time_after_the_answer() {
        let urgency = UrgentActivity::new();
        let now = Instant::now();
        assert!(!urgency.is_pressing(now) && !urgency.unanswered());
        let first = urgency.begin();
        let second = urgency.begin();
        assert!(urgency.unanswered() && urgency.is_pressing(now));
        drop(first);
        assert!(urgency.unanswered());
        // Before the answer: this thread may be put off for long after it.
        let now = Instant::now();
        drop(second);
        assert!(!urgency.unanswered());
        assert!(urgency.is_pressing(now));
        assert!(!urgency.is_pressing(Instant::now() + RECENT));
    }

    #[test]
    fn every_begin_has_its_end_whoever_answers() {
        let urgency = UrgentActivity::new();
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let answering = urgency.begin();
                        assert!(urgency.unanswered());
                        drop(answering);
                    }
                });
            }
        });
        assert!(!urgency.unanswered());
        // Not as of now: the last answer may be long ago.
        assert!(urgency.is_pressing(begun));
    }
}
