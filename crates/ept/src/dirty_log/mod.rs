//! The dirty log: what is tracked, in which form, and the rules that a leaf follows.

mod dirty_flags;
mod pml;
mod runs;
mod start_stop;
mod take;

use alloc::boxed::Box;
use core::fmt;

pub use pml::{PML_ENTRIES, PML_HEAD_INDEX, Vcpu, VcpuError};
pub use start_stop::{StartError, StopError};
pub use take::TakeError;

use crate::address::{Gfn, GfnRange, Level};
use crate::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::bitmap::{Bitmap, zeroed_words};
use crate::dirty_bitmap::DirtyBitmap;
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;

/// How writes are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogMethod {
    /// The first write to a page exits. Works on every processor; one exit a dirty page.
    WriteProtection = 1,
    /// The processor sets a flag, and taking the log reads the flags: no exit, but the cost of a take
    /// grows with the range, not with what is dirty.
    DirtyFlags = 2,
    /// The processor notes the page in a list: one exit in 512 dirty pages.
    Pml = 3,
}

const OFF: u8 = 0;

/// Pages that are visited without leaving the tables in between: 128 MiB. Whoever waits for others to
/// leave waits for one such part, not for a guest.
pub(crate) const CHUNK_PAGES: u64 = 1 << 15;

/// The state of a guest's log: atomic words, no lock.
pub(crate) struct Log {
    method: AtomicU8,
    pub(super) tracked: Bitmap,
    pub(super) dirty: DirtyBitmap,
    /// For each virtual processor: zero, or an odd number with the address of its PML buffer, if any.
    pub(super) vcpus: Box<[AtomicU64]>,
    /// How far page-modification logging is on: see `pml`.
    pub(super) pml: AtomicU8,
    /// Whether somebody is starting or stopping. Nobody waits for it: see `start`.
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

    /// Puts a page into the log, if it is tracked.
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

/// Whether a tracked leaf notices writes by not allowing them.
///
/// Superpages always do: a write splits them, so that the log is one of 4 KiB pages. So do leaves of
/// nested views: the address that the processor would log there is the nested guest's, and a flag there
/// is not where a scan by guest frame looks.
pub(crate) fn uses_write_protection(method: LogMethod, level: Level, nested: bool) -> bool {
    method == LogMethod::WriteProtection || level != Level::Size4K || nested
}

impl<M: HostMemory> Guest<M> {
    /// The form of the log that is on, if one is.
    pub fn log_method(&self) -> Option<LogMethod> {
        self.log.method()
    }

    /// Whether writes to `gfn` are logged.
    pub fn is_tracked(&self, gfn: Gfn) -> bool {
        self.log.tracked.get(gfn)
    }

    /// Puts pages into the log: what the hypervisor itself writes, devices it emulates, and pages of a
    /// taken range that could not be sent after all. Pages that are not tracked are left out.
    ///
    /// Call it after the write.
    pub fn mark_dirty(&self, range: GfnRange) {
        for gfn in range.intersect(self.all()).iter() {
            self.log.mark_dirty(gfn);
        }
    }

    /// Puts the page into the log that only the leaf's dirty flag knows of, before the leaf goes. Not
    /// for leaves of nested views: those are in the log since they became writable.
    pub(crate) fn log_dirty_flag(&self, leaf: Entry, gfn: Gfn) {
        // Logged superpages are never writable, so there is no flag to save.
        if leaf.is_logged() && leaf.dirty() && self.log.method() == Some(LogMethod::DirtyFlags) {
            self.log.mark_dirty(gfn);
        }
    }

    /// A leaf as it has to be for pages that nobody has written yet: not writable, or without dirty
    /// flag, if one of them is tracked; writable if the mapping allows it, otherwise; and with the
    /// dirty flag set where PML must not log it.
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
