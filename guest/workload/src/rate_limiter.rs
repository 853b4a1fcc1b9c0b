//! Limiting the rate of accesses.

use crate::clock::{Clock, ticks};
use std::time::Duration;

/// Limits a rate by sleeping, in steps long enough for a system call.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    clock: Clock,
    interval: u64,
    next: u64,
    /// When it began, and the length of a burst; 0 = no pauses.
    start: u64,
    burst: u64,
}

impl RateLimiter {
    /// This many a second; 0 = as fast as possible. In bursts of so many milliseconds, with pauses
    /// as long; 0 = without pauses.
    pub(crate) fn new(clock: Clock, rate: u64, burst_ms: u64) -> Self {
        let start = ticks();
        let interval = clock.ticks_per_second().checked_div(rate).unwrap_or(0);
        Self {
            clock,
            interval,
            next: start,
            start,
            burst: clock.ticks_of_us(burst_ms * 1000),
        }
    }

    /// Waits until the next access is due.
    pub(crate) fn wait(&mut self) {
        if self.burst > 0 {
            let at = (ticks() - self.start) % (2 * self.burst);
            if let Some(paused @ 1..) = at.checked_sub(self.burst) {
                let left = self.clock.nanoseconds(self.burst - paused);
                std::thread::sleep(Duration::from_nanos(left));
                // What was not due in the pause is not made up for.
                self.next = ticks();
            }
        }
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
            // After a long delay, do not catch up in a burst.
            self.next = now;
        }
        self.next += self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_never_exceeded() {
        let clock = Clock::calibrate();
        // Before the limiter's own start, because this thread may be descheduled in between.
        let start = ticks();
        let mut limiter = RateLimiter::new(clock, 1000, 0);
        for _ in 0..100 {
            limiter.wait();
        }
        // The hundredth access is due after 99 intervals, and may come a millisecond early.
        assert!(clock.nanoseconds(ticks() - start) >= 97_000_000);
    }

    #[test]
    fn nothing_is_due_in_a_pause() {
        let clock = Clock::calibrate();
        let start = ticks();
        let mut limiter = RateLimiter::new(clock, 1000, 20);
        for _ in 0..50 {
            limiter.wait();
        }
        // 20 in each burst: the fiftieth is in the third, after two pauses.
        assert!(clock.nanoseconds(ticks() - start) >= 85_000_000);
    }
}
