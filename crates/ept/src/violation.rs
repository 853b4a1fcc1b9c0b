//! The exit "EPT violation": what happened, and what the hypervisor does about it.

use crate::address::{FRAME_BYTES, Gfn, Level};
use crate::atomic::{Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::view::View;
use crate::walk::EntryRef;

/// The exit qualification of an EPT violation (SDM vol. 3C, "Basic VM-Exit Information", table "Exit
/// Qualification for EPT Violations").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExitQualification(pub u64);

impl ExitQualification {
    /// The access was a data read.
    pub const fn read(self) -> bool {
        self.0 & 1 != 0
    }

    /// The access was a data write; with accessed and dirty flags on, also any access of the processor
    /// to a guest's paging structures.
    pub const fn write(self) -> bool {
        self.0 & 2 != 0
    }

    /// The access was an instruction fetch.
    pub const fn fetch(self) -> bool {
        self.0 & 4 != 0
    }
}

/// What to do after an EPT violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViolationOutcome {
    /// Enter the guest again: the access will go through now, or find out more.
    Resume,
    /// Nothing is mapped: map the page and enter again, or tell the guest that nothing is there. Beyond
    /// [`MAX_PAGES`](crate::MAX_PAGES) nothing can be mapped.
    Absent(Gfn),
    /// Emulate the device.
    Mmio {
        /// The guest-physical address of the access.
        address: u64,
    },
    /// The mapping does not allow it: the hypervisor's own protection.
    Denied(Gfn),
    /// A superpage had to be split, and no frame is left for its table: free one and enter again.
    NoMemory(Gfn),
    /// There is no such view.
    NoView,
}

impl<M: HostMemory> Guest<M> {
    /// Handles an EPT violation at guest-physical `address` (VMCS field "guest-physical address") of a
    /// virtual processor in `view`. Lock-free, but where a superpage is split and where another thread
    /// is changing this very entry.
    ///
    /// After [`ViolationOutcome::Resume`] no processor has to forget anything: the entry allows more than
    /// before, and the exit itself has dropped what this processor remembered of the address (SDM
    /// vol. 3C, "Operations that Invalidate Cached Mappings").
    ///
    /// Two things of the exit are the hypervisor's, before it enters again. If the VMCS field "IDT-vectoring
    /// information" is valid, the access was part of delivering an event, which has to be injected anew
    /// (SDM vol. 3C, "Information for VM Exits During Event Delivery"). If it is not, and bit 12 of the
    /// qualification is set ("NMI unblocking due to IRET"), blocking by NMI has to be set in the guest's
    /// interruptibility state again, or a second NMI could come into the handler of the first.
    pub fn handle_ept_violation(
        &self,
        view: View,
        address: u64,
        why: ExitQualification,
    ) -> ViolationOutcome {
        let at = Gfn::new(address / FRAME_BYTES);
        if !at.is_translated() {
            // A processor with more than 48 address bits: no entry could allow the access.
            return ViolationOutcome::Absent(at);
        }
        let _guard = self.rcu.read();
        loop {
            let Some(found) = self.walk(view, at, Level::Size4K) else {
                return ViolationOutcome::NoView;
            };
            let entry = found.entry;
            if entry.is_frozen() {
                cpu_relax();
                continue;
            }
            if entry.is_mmio() {
                return ViolationOutcome::Mmio { address };
            }
            if !entry.is_leaf(found.level) {
                return ViolationOutcome::Absent(at);
            }
            if allows(entry, why) {
                return ViolationOutcome::Resume; // another processor was faster, or we had an old translation
            }
            if !allows(entry.with_write(entry.may_write()), why) {
                return ViolationOutcome::Denied(at);
            }
            let start = at.align_down(found.level);
            if entry.is_logged() && found.level > Level::Size4K {
                if self.split_at(start, &found).is_err() {
                    return ViolationOutcome::NoMemory(at);
                }
            } else if let Some(gfn) = self.grant(start, &found) {
                // Writable first, then into the log: if the log is taken between the two, the page is in
                // the next one. The other way round the log could be taken in between, and a write to a
                // page that is writable and in no log would be lost.
                self.log.mark_dirty(gfn);
                return ViolationOutcome::Resume;
            }
        }
    }

    /// Makes a leaf writable; returns the guest frame it maps, or `None` if it changed meanwhile.
    fn grant(&self, start: Gfn, found: &EntryRef<'_>) -> Option<Gfn> {
        let new = found.entry.with_write(true);
        if !found.location.is_nested() {
            return found.try_replace(new).then_some(start);
        }
        // A nested view's entry may be mapped anew at any time: held busy while asking what it maps.
        if !found.try_replace(Entry::FROZEN) {
            return None;
        }
        let gfn = found.gfn(start);
        found.slot.store(new.0, Ordering::Release);
        Some(gfn)
    }
}

fn allows(entry: Entry, why: ExitQualification) -> bool {
    (!why.read() || entry.is_readable())
        && (!why.write() || entry.is_writable())
        && (!why.fetch() || entry.is_executable())
}
