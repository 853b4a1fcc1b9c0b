//! The dirty log: which pages are tracked, by which method, and the state that each leaf must have.

mod dirty_flags;
mod pml;
mod runs;
mod start_stop;
mod take;

use alloc::boxed::Box;
use core::fmt;

pub(crate) use pml::PML_ENTRIES;
pub use pml::{PML_HEAD_INDEX, Vcpu, VcpuError};
pub use start_stop::{StartError, StopError};
pub use take::TakeError;

use crate::address::{Gfn, GfnRange, Level};
use crate::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::bitmap::{Bitmap, zeroed_words};
use crate::dirty_bitmap::DirtyBitmap;
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;

/// How writes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogMethod {
    /// The first write to a page exits (EPT violation). Works on every processor. One exit for each
    /// dirty page.
    WriteProtection = 1,
    /// The processor sets the dirty flag of the leaf; a take scans the flags. No exits, but the
    /// cost of a take grows with the size of the range, not with the number of dirty pages.
    DirtyFlags = 2,
    /// The processor writes the page's address to a buffer (page-modification logging). One exit
    /// for each 512 dirty pages.
    Pml = 3,
}

impl fmt::Display for LogMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteProtection => "write protection",
            Self::DirtyFlags => "dirty flags",
            Self::Pml => "page-modification logging",
        })
    }
}

const OFF: u8 = 0;

/// Pages that are processed in one RCU read-side critical section: 128 MiB.
/// [`Rcu::synchronize`](crate::rcu::Rcu::synchronize) waits for one such chunk, not for a pass over
/// the whole guest.
pub(crate) const CHUNK_PAGES: u64 = 1 << 15;

/// The state of a guest's log: atomic words, no lock.
pub(crate) struct Log {
    method: AtomicU8,
    pub(super) tracked: Bitmap,
    pub(super) dirty: DirtyBitmap,
    /// For each vCPU: zero if the slot is free; otherwise `EXISTS` and the address of the PML
    /// buffer, if there is one.
    pub(super) vcpus: Box<[AtomicU64]>,
    /// The state of page-modification logging: see `pml`.
    pub(super) pml: AtomicU8,
    /// Whether a thread is starting or stopping a log. Other threads do not wait for it: see
    /// `start_stop`.
    changing: AtomicU8,
}

impl Log {
    pub(crate) fn new(pages: u64, processors: usize) -> Option<Self> {
        Some(Self {
            method: AtomicU8::new(OFF),
            tracked: Bitmap::new(pages)?,
            dirty: DirtyBitmap::new(pages)?,
            vcpus: zeroed_words(processors as u64)?,
            pml: AtomicU8::new(OFF),
            changing: AtomicU8::new(0),
        })
    }

    pub(crate) fn method(&self) -> Option<LogMethod> {
        match self.method.load(Ordering::Acquire) {
            1 => Some(LogMethod::WriteProtection),
            2 => Some(LogMethod::DirtyFlags),
            3 => Some(LogMethod::Pml),
            _ => None,
        }
    }

    pub(super) fn set_method(&self, method: Option<LogMethod>) {
        self.method
            .store(method.map_or(OFF, |method| method as u8), Ordering::Release);
    }

    /// Adds a page to the log if it is tracked.
    pub(crate) fn mark_dirty(&self, gfn: Gfn) {
        if self.tracked.get(gfn) {
            self.dirty.set(gfn);
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("method", &self.method())
            .finish_non_exhaustive()
    }
}

/// Whether writes to a tracked leaf are detected by write protection.
///
/// Superpages are always write-protected: a write splits them, so that the log has 4 KiB
/// granularity. So are leaves of nested views: the processor would log the L2 guest's address, and
/// a scan by guest frame would not find the dirty flag.
pub(crate) fn uses_write_protection(method: LogMethod, level: Level, nested: bool) -> bool {
    method == LogMethod::WriteProtection || level != Level::Size4K || nested
}

impl<M: HostMemory> Guest<M> {
    /// Returns the method of the active log, or `None` if logging is off.
    pub fn log_method(&self) -> Option<LogMethod> {
        self.log.method()
    }

    /// Whether writes to `gfn` are logged.
    pub fn is_tracked(&self, gfn: Gfn) -> bool {
        self.log.tracked.get(gfn)
    }

    /// Adds pages to the log: pages that the hypervisor or an emulated device has written, and
    /// pages of a taken range that could not be sent. Pages that are not tracked are ignored.
    ///
    /// Call this after the write.
    pub fn mark_dirty(&self, range: GfnRange) {
        for gfn in range.intersect(self.all()).iter() {
            self.log.mark_dirty(gfn);
        }
    }

    /// Adds the page of a leaf to the log if only the leaf's dirty flag records the write. Called
    /// before the leaf is removed. Not for leaves of nested views: their pages were logged when the
    /// leaves became writable.
    pub(crate) fn log_dirty_flag(&self, leaf: Entry, gfn: Gfn) {
        // Logged superpages are never writable, so they have no dirty flag to save.
        if leaf.is_logged() && leaf.dirty() && self.log.method() == Some(LogMethod::DirtyFlags) {
            self.log.mark_dirty(gfn);
        }
    }

    /// Returns the leaf in the state for pages that were not written yet. If a page of `span` is
    /// tracked, the leaf is write-protected or its dirty flag is clear. Otherwise it is writable if
    /// the mapping permits writes, with the dirty flag set if PML must not log its writes.
    pub(crate) fn arm_leaf(
        &self,
        leaf: Entry,
        level: Level,
        span: GfnRange,
        nested: bool,
    ) -> Entry {
        if !leaf.may_write() {
            return leaf.with_log(false);
        }
        match self.log.method() {
            None => leaf.with_log(false).with_write(true),
            Some(method) if self.log.tracked.any(span) => {
                let protect = uses_write_protection(method, level, nested);
                leaf.with_log(true)
                    .with_write(!protect)
                    .with_dirty(protect && method == LogMethod::Pml)
            }
            Some(method) => {
                let dirty = method == LogMethod::Pml || leaf.dirty();
                leaf.with_log(false).with_write(true).with_dirty(dirty)
            }
        }
    }
}
