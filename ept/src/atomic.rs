//! The atomic types: those of `core`, or loom's when the loom models run.

#[cfg(not(loom))]
pub use core::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// One iteration of a short busy wait for another processor.
pub(crate) fn cpu_relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// A point between two reads where a loom model has to try a switch to another thread. Does nothing
/// outside loom.
///
/// Loom finds such points by remembering the *last* access to each atomic. When a thread loads and
/// then exchanges, as all threads here do, loom remembers the load and forgets an earlier load by
/// another thread.
pub(crate) fn loom_yield() {
    #[cfg(loom)]
    loom::thread::yield_now();
}
