//! Wakes a sleeping pusher. Costs the waking thread almost nothing if none sleeps.
//!
//! A sleeper sets its bit, then checks once more whether there is work. The urgent
//! thread publishes work, then checks whether a bit is set. With a full fence between
//! the two steps on both sides, one of them sees the other: no wake-up is lost.

use std::sync::OnceLock;
use std::time::Duration;

use crate::sync::{AtomicU64, Ordering, Thread, current, fence, park};

/// Wake-ups for up to 64 threads.
#[derive(Debug)]
pub(crate) struct Wakeup {
    /// A bit for each thread that sleeps or is about to.
    asleep: AtomicU64,
    threads: Box<[OnceLock<Thread>]>,
}

impl Wakeup {
    pub(crate) fn new(sleepers: usize) -> Self {
        Self {
            asleep: AtomicU64::new(0),
            threads: (0..sleepers.min(64)).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Sleeps until woken, but no longer than `time`, and not at all if there is work
    /// (`idle` returns `false`).
    ///
    /// Always called by the same thread for the same `number`.
    pub(crate) fn sleep(&self, number: usize, time: Duration, idle: impl FnOnce() -> bool) {
        let Some(thread) = self.threads.get(number) else {
            return;
        };
        thread.get_or_init(current);
        let bit = 1 << number;
        // Releases the handle above to a thread that sees the bit.
        self.asleep.fetch_or(bit, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if idle() {
            park(time);
        }
        self.asleep.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Wakes one sleeper, if there is one. Call it after the work is published.
    pub(crate) fn wake_one(&self) {
        fence(Ordering::SeqCst);
        loop {
            let asleep = self.asleep.load(Ordering::Acquire);
            if asleep == 0 {
                return;
            }
            let number = asleep.trailing_zeros();
            let bit = 1 << number;
            if self.asleep.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                return self.wake(number as usize);
            }
        }
    }

    /// Wakes all that sleep.
    pub(crate) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        for number in 0..self.threads.len() {
            self.wake(number);
        }
    }

    fn wake(&self, number: usize) {
        if let Some(thread) = self.threads.get(number).and_then(OnceLock::get) {
            thread.unpark();
        }
    }
}
