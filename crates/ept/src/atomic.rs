//! The atomics in use: the standard ones, or loom's when the model tests run.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// One turn of a short wait for another processor.
pub(crate) fn relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}
