//! A request to stop, from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that asks a migration to stop.
///
/// The engine looks at it between pieces of work. Before *commit* it cancels
/// the migration and the guest runs on at the source; afterwards there is
/// nothing to go back to, and the engine says so and goes on; once it has
/// said so, it looks at the flag anew.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that is set already: whoever looks at it waits no longer than
    /// until the next look.
    pub(crate) fn at_once() -> Self {
        let cancel = Self::new();
        cancel.cancel();
        cancel
    }

    /// Asks to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether somebody has asked; that is forgotten then.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The flag itself, for signal handlers.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
