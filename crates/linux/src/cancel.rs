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
pub struct Cancel {
    flag: Arc<AtomicBool>,
    /// Cancelled with these, too.
    parent: Option<Arc<Cancel>>,
}

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that is set already: whoever looks at it waits no longer than
    /// until the next look.
    pub fn cancelled() -> Self {
        let cancel = Self::new();
        cancel.cancel();
        cancel
    }

    /// A flag for one step: it is set when this one is, and can be set by
    /// itself.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            flag: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Asks to stop.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Whether somebody has asked; that is forgotten then.
    pub fn take(&self) -> bool {
        self.flag.swap(false, Ordering::AcqRel)
    }

    /// Whether somebody asked.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
            || self.parent.as_ref().is_some_and(|it| it.is_cancelled())
    }

    /// The flag itself, for signal handlers.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_cancelled_with_its_parent_and_by_itself() {
        let all = Cancel::new();
        let [one, other] = [all.child(), all.child()];
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !all.is_cancelled());
        all.cancel();
        assert!(other.is_cancelled() && other.child().is_cancelled());
    }
}
