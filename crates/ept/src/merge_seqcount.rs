//! Whether leaves of nested views are being put together.
//!
//! Such leaves are found by guest frame only, level after level, and a merge takes them from one level to
//! the one above: whoever has to find all of them looks again if a merge was under way.

use crate::atomic::{AtomicU64, Ordering, cpu_relax};

/// Counts merges: those begun so far in the upper half, those under way in the lower.
const BEGUN: u64 = 1 << 32;
const UNDER_WAY: u64 = BEGUN - 1;

#[derive(Debug)]
pub(crate) struct MergeSeqCount(AtomicU64);

impl MergeSeqCount {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Before a merge changes anything; it ends when the guard is dropped.
    pub(crate) fn begin(&self) -> MergeGuard<'_> {
        self.0.fetch_add(BEGUN + 1, Ordering::AcqRel);
        MergeGuard(self)
    }

    /// Does `work` until no merge was under way meanwhile.
    pub(crate) fn retry_if_merged(&self, work: impl Fn()) {
        loop {
            let before = self.0.load(Ordering::Acquire);
            if before & UNDER_WAY != 0 {
                cpu_relax();
                continue;
            }
            work();
            // Whoever has read, by acquiring, anything that a merge wrote sees here that it had begun.
            if self.0.load(Ordering::Acquire) == before {
                return;
            }
        }
    }
}

/// A merge is under way.
#[derive(Debug)]
pub(crate) struct MergeGuard<'a>(&'a MergeSeqCount);

impl Drop for MergeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
