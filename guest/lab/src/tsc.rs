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
