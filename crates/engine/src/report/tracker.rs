//! How far the present phase is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use hikkoshi_account::Phase;

/// Counts the pages of the present phase.
#[derive(Debug)]
pub struct Tracker {
    done: AtomicU64,
    /// As many were done before the links were lost; some of them have to be sent again.
    done_before: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    phase: Phase,
    round: u32,
    total: u64,
}

impl Default for Tracker {
    fn default() -> Self {
        Self {
            done: AtomicU64::new(0),
            done_before: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Connecting,
                round: 0,
                total: 0,
            }),
        }
    }
}

impl Tracker {
    /// Starts a phase, or a round of it, with `total` pages.
    pub fn begin(&self, phase: Phase, round: u32, total: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State {
            phase,
            round,
            total,
        };
        self.done.store(0, Relaxed);
        self.done_before.store(0, Relaxed);
    }

    /// Post-copy continues over new links, with so many pages that are `missing`. It stays as far
    /// as it was: of the same total, or, in an engine that resumes it, of `total` pages.
    pub fn resume_postcopy(&self, missing: u64, total: Option<u64>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, shown) = match state.phase {
            Phase::Postcopy => (state.total, self.shown(state.total)),
            _ => (0, 0),
        };
        let total = before.max(total.unwrap_or(0)).max(missing);
        *state = State {
            phase: Phase::Postcopy,
            round: 0,
            total,
        };
        self.done.store(total - missing, Relaxed);
        self.done_before.store(shown, Relaxed);
    }

    /// Pages of the phase that are not done.
    pub fn missing(&self) -> u64 {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.total.saturating_sub(self.done.load(Relaxed))
    }

    /// How many of `total` pages are done: never fewer than before.
    fn shown(&self, total: u64) -> u64 {
        let done = self.done.load(Relaxed);
        done.max(self.done_before.load(Relaxed)).min(total)
    }

    /// `pages` more pages of the phase are done.
    pub fn done(&self, pages: u64) {
        self.done.fetch_add(pages, Relaxed);
    }

    /// The phase, its round, and how many of its pages are done, of how many.
    pub fn present(&self) -> (Phase, u32, u64, u64) {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (
            state.phase,
            state.round,
            self.shown(state.total),
            state.total,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_begins_with_no_page_done() {
        let tracker = Tracker::default();
        tracker.begin(Phase::Precopy, 1, 1000);
        tracker.done(250);
        assert_eq!(tracker.present(), (Phase::Precopy, 1, 250, 1000));
        // The total is an estimate.
        tracker.done(2000);
        assert_eq!(tracker.present(), (Phase::Precopy, 1, 1000, 1000));
        tracker.begin(Phase::Postcopy, 0, 10);
        assert_eq!(tracker.present(), (Phase::Postcopy, 0, 0, 10));
    }

    #[test]
    fn postcopy_stays_as_far_as_it_was_when_links_are_replaced() {
        let tracker = Tracker::default();
        tracker.begin(Phase::Postcopy, 0, 100);
        tracker.done(60);
        // 5 of the pages that were sent were lost with the links.
        tracker.resume_postcopy(45, Some(100));
        assert_eq!(tracker.present(), (Phase::Postcopy, 0, 60, 100));
        assert_eq!(tracker.missing(), 45);
        tracker.done(5);
        assert_eq!(tracker.present(), (Phase::Postcopy, 0, 60, 100));
        tracker.done(40);
        assert_eq!(tracker.present(), (Phase::Postcopy, 0, 100, 100));
        assert_eq!(tracker.missing(), 0);
        // In the engine that resumes after this one was killed.
        let next = Tracker::default();
        next.resume_postcopy(45, Some(100));
        assert_eq!(next.present(), (Phase::Postcopy, 0, 55, 100));
        // A journal can say anything.
        let next = Tracker::default();
        next.resume_postcopy(45, Some(0));
        assert_eq!(next.present(), (Phase::Postcopy, 0, 0, 45));
    }
}
