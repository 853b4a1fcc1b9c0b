//! The dirty log: what is tracked, in which form, and the rules that a leaf follows.

mod dirty_flags;
mod pml;
mod runs;
mod start_stop;
mod take;

use alloc::boxed::Box;
use core::fmt;

pub use pml::{PML_ENTRIES, PML_START, Vcpu, VcpuError};
pub use start_stop::{StartError, StopError};
pub use take::TakeError;

use crate::address::{Gfn, GfnRange, Level};
use crate::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::bitmap::{Bits, DirtyBits, zeroes};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::Memory;

/// How writes are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
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
pub(crate) const CHUNK: u64 = 1 << 15;

/// The state of a guest's log: atomic words, no lock.
pub(crate) struct Log {
    form: AtomicU8,
    pub(super) tracked: Bits,
    pub(super) dirty: DirtyBits,
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
            form: AtomicU8::new(OFF),
            tracked: Bits::new(pages)?,
            dirty: DirtyBits::new(pages)?,
            vcpus: zeroes(processors as u64)?,
            pml: AtomicU8::new(OFF),
            changing: AtomicU8::new(0),
        })
    }

    pub(crate) fn form(&self) -> Option<Form> {
        match self.form.load(Ordering::Acquire) {
            1 => Some(Form::WriteProtection),
            2 => Some(Form::DirtyFlags),
            3 => Some(Form::Pml),
            _ => None,
        }
    }

    pub(super) fn set_form(&self, form: Option<Form>) {
        self.form
            .store(form.map_or(OFF, |form| form as u8), Ordering::Release);
    }

    /// Puts a page into the log, if it is tracked.
    pub(crate) fn mark(&self, gfn: Gfn) {
        if self.tracked.get(gfn) {
            self.dirty.set(gfn);
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("form", &self.form())
            .finish_non_exhaustive()
    }
}

/// Whether a tracked leaf notices writes by not allowing them.
///
/// Superpages always do: a write splits them, so that the log is one of 4 KiB pages. So do leaves of
/// nested views: the address that the processor would log there is the nested guest's, and a flag there
/// is not where a scan by guest frame looks.
pub(crate) fn by_protection(form: Form, level: Level, nested: bool) -> bool {
    form == Form::WriteProtection || level != Level::Page || nested
}

impl<M: Memory> Guest<M> {
    /// The form of the log that is on, if one is.
    pub fn logging(&self) -> Option<Form> {
        self.log.form()
    }

    /// Whether writes to `gfn` are logged.
    pub fn is_tracked(&self, gfn: Gfn) -> bool {
        self.log.tracked.get(gfn)
    }

    /// Puts pages into the log: what the hypervisor itself writes, devices it emulates, and pages of a
    /// taken range that could not be sent after all. Pages that are not tracked are left out.
    ///
    /// Call it after the write.
    pub fn mark(&self, range: GfnRange) {
        for gfn in range.intersect(self.all()).iter() {
            self.log.mark(gfn);
        }
    }

    /// Puts the page into the log that only the leaf's dirty flag knows of, before the leaf goes. Not
    /// for leaves of nested views: those are in the log since they became writable.
    pub(crate) fn save_flag(&self, leaf: Entry, gfn: Gfn) {
        // Logged superpages are never writable, so there is no flag to save.
        if leaf.is_logged() && leaf.dirty() && self.log.form() == Some(Form::DirtyFlags) {
            self.log.mark(gfn);
        }
    }

    /// A leaf as it has to be for pages that nobody has written yet: not writable, or without dirty
    /// flag, if one of them is tracked; writable if the mapping allows it, otherwise; and with the
    /// dirty flag set where PML must not log it.
    pub(crate) fn armed(&self, leaf: Entry, level: Level, span: GfnRange, nested: bool) -> Entry {
        if !leaf.may_write() {
            return leaf.with_log(false);
        }
        match self.log.form() {
            None => leaf.with_log(false).with_write(true),
            Some(form) if self.log.tracked.any(span) => {
                let protect = by_protection(form, level, nested);
                leaf.with_log(true)
                    .with_write(!protect)
                    .with_dirty(protect && form == Form::Pml)
            }
            Some(form) => {
                let dirty = form == Form::Pml || leaf.dirty();
                leaf.with_log(false).with_write(true).with_dirty(dirty)
            }
        }
    }
}
