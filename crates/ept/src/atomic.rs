//! The atomics in use: the standard ones, or loom's when the model tests run.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// One turn of a short wait for another processor.
pub(crate) fn cpu_relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// A place between two reads at which a model has to try what other threads can do meanwhile; nothing
/// otherwise.
///
/// Loom finds such places by remembering the *last* access to each atomic: of a thread that loads and then
/// exchanges, as all of ours do, it remembers the load, and forgets another thread's load before that.
pub(crate) fn loom_yield() {
    #[cfg(loom)]
    loom::thread::yield_now();
}
