//! Time by the processor's time-stamp counter, calibrated against ACPI's timer at the start.

use crate::port;

/// ACPI's timer, where the firmware puts it on QEMU's `pc` and `q35`.
const TIMER: u16 = 0x608;
const TIMER_HZ: u64 = 3_579_545;
/// The timer has 24 bits.
const TIMER_MASK: u32 = 0xff_ffff;
/// A tenth of a second.
const CALIBRATION: u32 = 357_954;
/// A timer that reads the same so many times in succession does not run.
const READINGS: u32 = 1 << 20;

/// The counter's current value, in ticks.
pub fn ticks() -> u64 {
    // SAFETY: reading the counter has no effect, and x86-64 always has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Converts between ticks and time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Ticks in a second.
    pub hz: u64,
}

impl Clock {
    /// Calibrates the counter for a tenth of a second; `None` if the timer does not run.
    pub fn calibrate() -> Option<Self> {
        let first = Sample::take();
        let mut now = first.timer;
        while now.wrapping_sub(first.timer) & TIMER_MASK < CALIBRATION {
            let previous = now;
            now = (0..READINGS)
                .map(|_| timer())
                .find(|now| *now != previous)?;
        }
        let last = Sample::take();
        let passed = last.timer.wrapping_sub(first.timer) & TIMER_MASK;
        let hz = (last.ticks - first.ticks) * TIMER_HZ / u64::from(passed);
        Some(Self { hz: hz.max(1) })
    }

    /// Converts ticks to nanoseconds.
    pub fn nanoseconds(self, ticks: u64) -> u64 {
        let (seconds, rest) = (ticks / self.hz, ticks % self.hz);
        seconds * 1_000_000_000 + rest * 1_000_000_000 / self.hz
    }

    /// Converts microseconds to ticks.
    pub fn ticks_of_us(self, us: u64) -> u64 {
        us.saturating_mul(self.hz) / 1_000_000
    }
}

/// The timer and the counter at one time.
struct Sample {
    timer: u32,
    ticks: u64,
}

impl Sample {
    /// Reads both eight times and takes the reading that was interrupted least.
    fn take() -> Self {
        let mut best = (u64::MAX, Self { timer: 0, ticks: 0 });
        for _ in 0..8 {
            let before = ticks();
            let timer = timer();
            let took = ticks().wrapping_sub(before);
            if took < best.0 {
                let ticks = before + took / 2;
                best = (took, Self { timer, ticks });
            }
        }
        best.1
    }
}

fn timer() -> u32 {
    // SAFETY: reading the timer has no effect.
    unsafe { port::read_double(TIMER) }
}
