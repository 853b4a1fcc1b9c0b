//! Whether the guest waits for a page now, or did a short time ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After a request the guest is likely to make another one soon: background links keep a small
/// window for this time.
pub(crate) const RECENT: Duration = Duration::from_millis(50);

/// The threads that answer requests set it; background links read it.
///
/// It carries hints only: a value that is seen late or not at all costs time and nothing else, so
/// every access is relaxed.
#[derive(Debug, Clone)]
pub struct UrgentActivity(Arc<State>);

#[derive(Debug)]
struct State {
    unanswered: AtomicU32,
    /// Nanoseconds from `epoch` to the last answer; 0: there was none.
    last: AtomicU64,
    epoch: Instant,
}

impl Default for UrgentActivity {
    fn default() -> Self {
        Self::new()
    }
}

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
#[must_use = "the request counts as answered when this is dropped"]
pub struct Answering<'a>(&'a UrgentActivity);

impl UrgentActivity {
    /// A new instance, without requests.
    pub fn new() -> Self {
        Self(Arc::new(State {
            unanswered: AtomicU32::new(0),
            last: AtomicU64::new(0),
            epoch: Instant::now(),
        }))
    }

    /// A common point in time for all that share this.
    pub(crate) fn epoch(&self) -> Instant {
        self.0.epoch
    }

    /// Counts a request; drop the guard when the answer is sent.
    pub fn begin(&self) -> Answering<'_> {
        self.0.unanswered.fetch_add(1, Ordering::Relaxed);
        Answering(self)
    }

    /// Whether a request is being answered.
    pub fn unanswered(&self) -> bool {
        self.0.unanswered.load(Ordering::Relaxed) > 0
    }

    /// Whether a request is being answered, or was shortly before `now`.
    pub(crate) fn is_recent(&self, now: Instant) -> bool {
        let last = self.0.last.load(Ordering::Relaxed);
        let recent = last > 0
            && now.saturating_duration_since(self.0.epoch + Duration::from_nanos(last)) < RECENT;
        recent || self.unanswered()
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        let state = &*self.0.0;
        let passed = u64::try_from(state.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        state.last.fetch_max(passed.max(1), Ordering::Relaxed);
        state.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn activity_lasts_from_the_request_until_some_time_after_the_answer() {
        let activity = UrgentActivity::new();
        let now = Instant::now();
        assert!(!activity.is_recent(now) && !activity.unanswered());
        let first = activity.begin();
        let second = activity.begin();
        assert!(activity.unanswered() && activity.is_recent(now));
        drop(first);
        assert!(activity.unanswered());
        // The time is read before the answer: this thread may lose its processor for long after it.
        let now = Instant::now();
        drop(second);
        assert!(!activity.unanswered());
        assert!(activity.is_recent(now));
        assert!(!activity.is_recent(Instant::now() + RECENT));
    }

    #[test]
    fn requests_are_counted_across_threads() {
        let activity = UrgentActivity::new();
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let answering = activity.begin();
                        assert!(activity.unanswered());
                        drop(answering);
                    }
                });
            }
        });
        assert!(!activity.unanswered());
        // As of the first request: the last answer may be long ago by now.
        assert!(activity.is_recent(begun));
    }
}
