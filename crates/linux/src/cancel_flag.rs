//! A request to stop for loops that check a flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that asks a migration to stop.
///
/// The engine checks it between pieces of work. Before *commit* it cancels the migration, and the
/// guest continues to run at the source. After *commit* cancelling is not possible: the engine
/// reports that, clears the flag and continues.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag {
    flag: Arc<AtomicBool>,
    /// This flag is also set while its parent is set.
    parent: Option<Arc<CancelFlag>>,
}

impl CancelFlag {
    /// Creates a flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a flag that is already set: a wait that uses it ends at the next check.
    pub fn cancelled() -> Self {
        let cancel = Self::new();
        cancel.cancel();
        cancel
    }

    /// Creates a flag for one step: it is set when this one is, and can also be set separately.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            flag: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Sets the flag.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Whether the flag was set; clears it.
    pub fn take(&self) -> bool {
        self.flag.swap(false, Ordering::AcqRel)
    }

    /// Whether this flag or its parent is set.
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
        let all = CancelFlag::new();
        let [one, other] = [all.child(), all.child()];
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !all.is_cancelled());
        all.cancel();
        assert!(other.is_cancelled() && other.child().is_cancelled());
    }
}
