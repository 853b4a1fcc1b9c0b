//! A sequence counter of merges in nested views.
//!
//! Leaves of nested views can be found by guest frame only, one level after the other, and a merge
//! moves them up one level. A scan that must find all of them is repeated if a merge was in
//! progress.

use crate::atomic::{AtomicU64, Ordering, cpu_relax};

/// One started merge. The upper half of the counter counts the merges started so far, the lower
/// half those in progress.
const STARTED: u64 = 1 << 32;
const IN_PROGRESS: u64 = STARTED - 1;

#[derive(Debug)]
pub(crate) struct MergeSeqCount(AtomicU64);

impl MergeSeqCount {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Starts a merge, before it changes anything. The merge ends when the guard is dropped.
    pub(crate) fn begin(&self) -> MergeGuard<'_> {
        self.0.fetch_add(STARTED + 1, Ordering::AcqRel);
        MergeGuard(self)
    }

    /// Runs `work`, and repeats it until no merge was in progress meanwhile.
    pub(crate) fn retry_if_merged(&self, work: impl Fn()) {
        loop {
            let before = self.0.load(Ordering::Acquire);
            if before & IN_PROGRESS != 0 {
                cpu_relax();
                continue;
            }
            work();
            // If `work` has read, with acquire ordering, anything that a merge wrote, this load
            // sees that the merge had started.
            if self.0.load(Ordering::Acquire) == before {
                return;
            }
        }
    }
}

/// A merge in progress.
#[derive(Debug)]
pub(crate) struct MergeGuard<'a>(&'a MergeSeqCount);

impl Drop for MergeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
