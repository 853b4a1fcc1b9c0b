//! The frequency of the host's time-stamp counter, which is also that of an emulated processor.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for an error below a thousandth.
const MEASURED: Duration = Duration::from_millis(50);

/// The frequency in kHz. It is measured once, so that all machines get the same number.
pub(crate) fn khz() -> u64 {
    static KHZ: OnceLock<u64> = OnceLock::new();
    *KHZ.get_or_init(|| {
        let (start, first) = (Instant::now(), ticks());
        thread::sleep(MEASURED);
        let (elapsed, last) = (start.elapsed(), ticks());
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        (last - first).saturating_mul(1000) / microseconds.max(1)
    })
}

fn ticks() -> u64 {
    // SAFETY: reading the counter has no effect, and x86-64 always has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// One moment by two clocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TscReading {
    /// The time-stamp counter of the host, and of a guest under KVM to which it is passed on.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
}

impl TscReading {
    /// Now. Of several readings, it is the one that took the shortest time.
    pub fn now() -> Self {
        let one = || {
            let before = ticks();
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let took = ticks() - before;
            let part = |number: i64| u64::try_from(number).unwrap_or(0);
            let reading = Self {
                ticks: before + took / 2,
                monotonic_ns: part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec),
            };
            (took, reading)
        };
        let shortest = (0..16).map(|_| one()).min_by_key(|(took, _)| *took);
        shortest.map_or_else(|| one().1, |(_, reading)| reading)
    }
}
