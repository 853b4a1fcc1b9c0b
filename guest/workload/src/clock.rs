//! Timing of single accesses by the processor's time-stamp counter, without a system call.
//!
//! Under emulation a kernel often does not trust the counter, and `clock_gettime` becomes a system
//! call that reads an emulated device. Reading the counter itself stays cheap. It is calibrated
//! against the kernel's clock once, at the start.

use std::time::{Duration, Instant};

/// The counter's current value, in ticks.
pub(crate) fn ticks() -> u64 {
    // SAFETY: reading the counter has no effect, and x86-64 always has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Converts between ticks and time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    ticks_per_second: u64,
    /// Nanoseconds a tick, times 2^32.
    ns_scale: u64,
}

impl Clock {
    /// Calibrates the counter against the kernel's clock for a tenth of a second.
    pub(crate) fn calibrate() -> Self {
        let (start, first) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(100));
        let (elapsed, last) = (start.elapsed(), ticks());
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        Self::new((last - first).saturating_mul(1_000_000_000) / nanoseconds.max(1))
    }

    fn new(ticks_per_second: u64) -> Self {
        let ticks_per_second = ticks_per_second.max(1);
        Self {
            ticks_per_second,
            ns_scale: (1_000_000_000 << 32) / ticks_per_second,
        }
    }

    pub(crate) fn ticks_per_second(self) -> u64 {
        self.ticks_per_second
    }

    /// Converts ticks to nanoseconds, by a multiplication and a shift, because it is called for
    /// every access of more than a microsecond.
    pub(crate) fn nanoseconds(self, ticks: u64) -> u64 {
        let scaled = (u128::from(ticks) * u128::from(self.ns_scale)) >> 32;
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// Converts microseconds to ticks.
    pub(crate) fn ticks_of_us(self, us: u64) -> u64 {
        us.saturating_mul(self.ticks_per_second) / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree() {
        for hz in [1_000_000_000, 2_400_000_000, 100_000_000] {
            let clock = Clock::new(hz);
            assert_eq!(clock.ticks_of_us(1_000_000), hz);
            let second = clock.nanoseconds(hz);
            assert!(
                (999_999_990..=1_000_000_000).contains(&second),
                "{hz}: {second}"
            );
            let hour = clock.nanoseconds(hz * 3600) / 3600;
            assert!(
                (999_999_990..=1_000_000_000).contains(&hour),
                "{hz}: {hour}"
            );
        }
    }
}
