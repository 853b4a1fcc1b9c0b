//! Turns counts into [`Progress`].

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::report::{Observer, Phase, Progress};

/// How often an observer receives a report.
const PERIOD: Duration = Duration::from_millis(200);

/// Counts the present phase and reports it to an observer several times a second.
#[derive(Debug)]
pub struct Tracker {
    done: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    round: u32,
    total: u64,
    reported_at: Instant,
    reported_bytes: u64,
    rate: f64,
}

impl Default for Tracker {
    fn default() -> Self {
        Self {
            done: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Connecting,
                round: 0,
                total: 0,
                reported_at: Instant::now(),
                reported_bytes: 0,
                rate: 0.0,
            }),
        }
    }
}

impl Tracker {
    /// Starts a phase, or a round of it, with `total` pages.
    pub fn begin(&self, phase: Phase, round: u32, total: u64) {
        if let Ok(mut state) = self.state.lock() {
            (state.phase, state.round, state.total) = (phase, round, total);
            self.done.store(0, Relaxed);
        }
    }

    /// `pages` more pages of the phase are done.
    pub fn done(&self, pages: u64) {
        self.done.fetch_add(pages, Relaxed);
    }

    /// Reports to `observer`, if it is time; `bytes` is the total so far. Never waits: if another
    /// thread is reporting, this one returns.
    pub fn report(&self, observer: &dyn Observer, bytes: u64) {
        self.report_at(Instant::now(), observer, bytes);
    }

    fn report_at(&self, now: Instant, observer: &dyn Observer, bytes: u64) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        let elapsed = now.saturating_duration_since(state.reported_at);
        if elapsed < PERIOD {
            return;
        }
        #[allow(clippy::cast_precision_loss)]
        let rate = bytes.saturating_sub(state.reported_bytes) as f64 / elapsed.as_secs_f64();
        state.rate = if state.rate == 0.0 {
            rate
        } else {
            0.7 * state.rate + 0.3 * rate
        };
        state.reported_at = now;
        state.reported_bytes = bytes;
        let progress = Progress {
            phase: state.phase,
            round: state.round,
            done_pages: self.done.load(Relaxed).min(state.total),
            total_pages: state.total,
            bytes,
            bytes_per_second: state.rate,
        };
        drop(state);
        observer.progress(&progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Reported(Mutex<Vec<Progress>>);

    impl Observer for Reported {
        fn progress(&self, progress: &Progress) {
            self.0.lock().unwrap().push(*progress);
        }
        fn notice(&self, _: &str) {}
    }

    #[test]
    fn tells_now_and_then() {
        let tracker = Tracker::default();
        let reported = Reported::default();
        let begun = tracker.state.lock().unwrap().reported_at;
        let just_before = PERIOD - Duration::from_nanos(1);
        tracker.begin(Phase::Precopy, 1, 1000);
        tracker.done(250);
        tracker.report_at(begun + just_before, &reported, 1 << 20);
        assert!(reported.0.lock().unwrap().is_empty(), "too early");
        tracker.report_at(begun + PERIOD, &reported, 1 << 20);
        tracker.report_at(begun + PERIOD + just_before, &reported, 2 << 20);
        let reported = reported.0.lock().unwrap();
        assert_eq!(reported.len(), 1);
        assert_eq!(
            (reported[0].done_pages, reported[0].total_pages),
            (250, 1000)
        );
        assert!(reported[0].bytes_per_second > 0.0);
        assert!(reported[0].time_left().is_some());
    }

    /// Also by the real clock.
    #[test]
    fn tells_when_its_time_has_come() {
        let tracker = Tracker::default();
        let reported = Reported::default();
        tracker.begin(Phase::Precopy, 1, 1000);
        std::thread::sleep(PERIOD);
        tracker.report(&reported, 1 << 20);
        assert_eq!(reported.0.lock().unwrap().len(), 1);
    }
}
