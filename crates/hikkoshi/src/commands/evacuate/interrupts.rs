//! Signals that end an evacuation: each one counts.

use std::sync::atomic::Ordering;

use hikkoshi_engine::CancelFlag;

/// Set by SIGINT, SIGTERM and SIGHUP.
#[derive(Debug, Clone)]
pub(super) struct Interrupts(CancelFlag);

impl Interrupts {
    pub(super) fn new(flag: &CancelFlag) -> Self {
        Self(flag.clone())
    }

    /// Whether there was a signal since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.flag().swap(false, Ordering::Relaxed)
    }
}
