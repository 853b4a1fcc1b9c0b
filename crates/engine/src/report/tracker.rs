//! How far the present phase is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The phase that a migration is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Links are opened, machines are compared, disks are copied.
    Connecting,
    /// Pages are sent while the guest runs at the source.
    Precopy,
    /// The guest is paused.
    Switchover,
    /// The guest runs at the destination, pages follow.
    Postcopy,
}

/// Counts the pages of the present phase.
#[derive(Debug)]
pub struct Tracker {
    done: AtomicU64,
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
    }

    /// `pages` more pages of the phase are done.
    pub fn done(&self, pages: u64) {
        self.done.fetch_add(pages, Relaxed);
    }

    /// The phase, its round, and how many of its pages are done, of how many.
    pub fn present(&self) -> (Phase, u32, u64, u64) {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.done.load(Relaxed).min(state.total);
        (state.phase, state.round, done, state.total)
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
}
