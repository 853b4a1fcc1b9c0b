//! Primitives for what threads share: the standard library's, or loom's in model tests.
//!
//! Only code that a model test covers uses them.

#[cfg(loom)]
pub(crate) use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::thread::{Thread, current};
#[cfg(not(loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::thread::{Thread, current};

use std::time::Duration;

/// Sleeps until another thread unparks this one, for at most `time`. In a model time never passes,
/// so a lost wake-up is found.
pub(crate) fn park(time: Duration) {
    #[cfg(not(loom))]
    std::thread::park_timeout(time);
    #[cfg(loom)]
    {
        let _ = time;
        loom::thread::park();
    }
}
