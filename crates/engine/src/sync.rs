//! What threads share is built on these: the standard ones, or loom's when the
//! model tests run.
//!
//! Only what a model test covers uses them.

#[cfg(loom)]
pub(crate) use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::thread::{Thread, current};
#[cfg(not(loom))]
pub(crate) use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::thread::{Thread, current};

use std::time::Duration;

/// Sleeps until somebody unparks the thread, but no longer than `time`; in a
/// model time never passes, so that a wake-up that gets lost is found.
pub(crate) fn park(time: Duration) {
    #[cfg(not(loom))]
    std::thread::park_timeout(time);
    #[cfg(loom)]
    {
        let _ = time;
        loom::thread::park();
    }
}
