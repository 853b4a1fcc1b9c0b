//! KVM's clock, which the boot code has switched on where it exists: KVM writes how to convert the
//! time-stamp counter to nanoseconds into [`KVM_CLOCK`], and rewrites it after a move.

use crate::clock::ticks;
use core::sync::atomic::{Ordering, fence};

/// The structure that KVM and guests agree on.
#[repr(C, align(64))] // it must not cross a page
#[derive(Clone, Copy, Debug)]
struct Conversion {
    /// Odd while KVM writes.
    version: u32,
    padding: u32,
    ticks: u64,
    nanoseconds: u64,
    multiplier: u32,
    shift: i8,
    flags: u8,
    padding2: [u8; 2],
}

/// KVM writes here. Zero without KVM.
#[unsafe(no_mangle)]
static mut KVM_CLOCK: Conversion = Conversion {
    version: 0,
    padding: 0,
    ticks: 0,
    nanoseconds: 0,
    multiplier: 0,
    shift: 0,
    flags: 0,
    padding2: [0; 2],
};

/// One time by the counter and by KVM's clock: ticks and nanoseconds. `None` without KVM's clock.
pub fn read() -> Option<(u64, u64)> {
    loop {
        // SAFETY: a copy of plain numbers, which KVM may be writing: then the versions tell.
        let conversion = unsafe { (&raw const KVM_CLOCK).read_volatile() };
        fence(Ordering::SeqCst);
        let now = ticks();
        // SAFETY: as above.
        let version = unsafe { (&raw const KVM_CLOCK.version).read_volatile() };
        if version == 0 {
            return None;
        }
        if version.is_multiple_of(2) && version == conversion.version {
            return Some((now, conversion.nanoseconds_at(now)));
        }
    }
}

impl Conversion {
    fn nanoseconds_at(&self, now: u64) -> u64 {
        let passed = u128::from(now.wrapping_sub(self.ticks));
        let shift = u32::from(self.shift.unsigned_abs());
        let shifted = match self.shift {
            0.. => passed << shift,
            _ => passed >> shift,
        };
        let passed = (shifted * u128::from(self.multiplier)) >> 32;
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.nanoseconds.wrapping_add(passed)
    }
}
