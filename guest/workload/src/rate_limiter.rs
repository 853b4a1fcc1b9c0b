//! Keeping to a rate of accesses.

use crate::clock::{Clock, ticks};
use std::time::Duration;

/// Keeps to a rate, by sleeping in steps long enough to be worth a system call.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    clock: Clock,
    interval: u64,
    next: u64,
}

impl RateLimiter {
    /// So many a second; 0 = as fast as it goes.
    pub(crate) fn new(clock: Clock, rate: u64) -> Self {
        let interval = clock.ticks_per_second().checked_div(rate).unwrap_or(0);
        Self {
            clock,
            interval,
            next: ticks(),
        }
    }

    /// Waits until the next one is due.
    pub(crate) fn wait(&mut self) {
        if self.interval == 0 {
            return;
        }
        let now = ticks();
        if let Some(ahead) = self.next.checked_sub(now) {
            let nanoseconds = self.clock.nanoseconds(ahead);
            if nanoseconds >= 1_000_000 {
                std::thread::sleep(Duration::from_nanos(nanoseconds));
            }
        } else if now - self.next > self.clock.ticks_per_second() / 10 {
            // After a long hold-up, no burst to make up for it.
            self.next = now;
        }
        self.next += self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_never_faster_than_its_rate() {
        let clock = Clock::calibrate();
        // Before the pace's own beginning, which would be ahead by however long this thread has to
        // wait for a processor in between.
        let start = ticks();
        let mut limiter = RateLimiter::new(clock, 1000);
        for _ in 0..100 {
            limiter.wait();
        }
        // The hundredth is due after 99 intervals, and may come a millisecond early.
        assert!(clock.nanoseconds(ticks() - start) >= 97_000_000);
    }
}
