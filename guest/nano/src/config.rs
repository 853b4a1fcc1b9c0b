//! What every task knows: the options, and the clock.

use crate::clock::Clock;
use crate::counters::Scale;
use crate::options::Options;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::*};

/// What every task knows.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The options.
    pub options: Options,
    /// The time-stamp counter's frequency.
    pub clock: Clock,
    /// Which accesses are slow.
    pub scale: Scale,
    /// When the guest booted.
    pub booted: u64,
}

struct Slot {
    set: AtomicBool,
    config: UnsafeCell<Option<Config>>,
}

// SAFETY: it is written once, before `set` is true, and only read afterwards.
unsafe impl Sync for Slot {}

static SLOT: Slot = Slot {
    set: AtomicBool::new(false),
    config: UnsafeCell::new(None),
};

/// Sets it, once, before other processors and tasks start.
pub fn set(config: Config) {
    assert!(!SLOT.set.load(Acquire), "set once");
    // SAFETY: nothing reads it before `set` is true.
    unsafe { *SLOT.config.get() = Some(config) };
    SLOT.set.store(true, Release);
}

/// What every task knows.
pub fn get() -> &'static Config {
    assert!(SLOT.set.load(Acquire), "the configuration is not set yet");
    // SAFETY: it has been written, and is not written again.
    match unsafe { &*SLOT.config.get() } {
        Some(config) => config,
        None => unreachable!("set with a configuration"),
    }
}
