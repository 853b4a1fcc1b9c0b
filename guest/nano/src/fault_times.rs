//! When each of the first asynchronous page faults began and ended, by the time-stamp counter.
//!
//! With `hk.fault_times`, the scheduler notes the times, and the command `faults` prints them.

use crate::config;
use crate::say;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// How many faults can be noted.
pub const MOST: usize = 1024;
/// No fault of a task is noted.
const NONE: usize = usize::MAX;

/// The times of one fault.
#[derive(Debug)]
struct Times {
    token: AtomicU32,
    /// The *not present* event was taken.
    not_present: AtomicU64,
    /// The processor left for another task, or to halt.
    other: AtomicU64,
    /// The *page ready* event was taken.
    ready: AtomicU64,
    /// The processor left for the task.
    resumed: AtomicU64,
}

static TIMES: [Times; MOST] = [const {
    Times {
        token: AtomicU32::new(0),
        not_present: AtomicU64::new(0),
        other: AtomicU64::new(0),
        ready: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
    }
}; MOST];
/// How many are noted.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of the fault that a task waits for, if it is noted.
#[derive(Debug)]
pub struct NotedFault(AtomicUsize);

impl NotedFault {
    /// There is none.
    pub const fn none() -> Self {
        Self(AtomicUsize::new(NONE))
    }

    /// A *not present* event was taken.
    pub fn begin(&self, token: u32, now: u64) {
        let number = COUNT.load(Relaxed);
        if number >= config::get().options.fault_times {
            return;
        }
        // Two processors may note the same number: then one fault is lost.
        COUNT.store(number + 1, Relaxed);
        let times = &TIMES[number];
        times.token.store(token, Relaxed);
        times.not_present.store(now, Relaxed);
        self.0.store(number, Relaxed);
    }

    /// The processor leaves for another task.
    pub fn leave(&self, now: u64) {
        if let Some(times) = self.times()
            && times.other.load(Relaxed) == 0
        {
            times.other.store(now, Relaxed);
        }
    }

    /// The *page ready* event was taken.
    pub fn ready(&self, now: u64) {
        if let Some(times) = self.times() {
            times.ready.store(now, Relaxed);
        }
    }

    /// The processor leaves for the task that waited.
    pub fn resume(&self, now: u64) {
        if let Some(times) = self.times() {
            times.resumed.store(now, Relaxed);
            self.0.store(NONE, Relaxed);
        }
    }

    fn times(&self) -> Option<&'static Times> {
        TIMES.get(self.0.load(Relaxed))
    }
}

/// Prints a line for each fault that has ended, and their number.
pub fn print() {
    let mut ended = 0;
    for times in &TIMES[..COUNT.load(Relaxed).min(MOST)] {
        let resumed = times.resumed.load(Relaxed);
        if resumed != 0 {
            ended += 1;
            say!(
                "fault: ok token={} not_present={} other={} ready={} resumed={resumed}",
                times.token.load(Relaxed),
                times.not_present.load(Relaxed),
                times.other.load(Relaxed),
                times.ready.load(Relaxed),
            );
        }
    }
    say!("noted: ok faults={ended}");
}
