//! Handling EPT violations.

use crate::address::{FRAME_BYTES, Gfn, Level};
use crate::atomic::{Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::view::View;
use crate::walk::EntryRef;

/// The exit qualification of an EPT violation (SDM vol. 3C, "Basic VM-Exit Information", table
/// "Exit Qualification for EPT Violations").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExitQualification(pub u64);

impl ExitQualification {
    /// The access was a data read.
    pub const fn read(self) -> bool {
        self.0 & 1 != 0
    }

    /// The access was a data write. With accessed and dirty flags enabled, also any access of the
    /// processor to the guest's paging structures.
    pub const fn write(self) -> bool {
        self.0 & 2 != 0
    }

    /// The access was an instruction fetch.
    pub const fn fetch(self) -> bool {
        self.0 & 4 != 0
    }
}

/// What the hypervisor does after an EPT violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViolationOutcome {
    /// Enter the guest again and retry the access. It succeeds now, or causes a violation with
    /// another outcome.
    Resume,
    /// Nothing is mapped: map the page and enter again, or report the error to the guest. Nothing
    /// can be mapped at or above [`MAX_PAGES`](crate::MAX_PAGES).
    Absent(Gfn),
    /// Emulate the device.
    Mmio {
        /// The guest-physical address of the access.
        address: u64,
    },
    /// The mapping does not permit the access: the hypervisor's own protection.
    Denied(Gfn),
    /// A superpage must be split, and there is no frame for the table: free a frame and enter
    /// again.
    NoMemory(Gfn),
    /// The view does not exist.
    NoView,
}

impl<M: HostMemory> Guest<M> {
    /// Handles an EPT violation at guest-physical `address` (VMCS field "guest-physical address")
    /// of a vCPU in `view`. Lock-free, except while a superpage is split or another thread changes
    /// the same entry.
    ///
    /// After [`ViolationOutcome::Resume`] no TLB flush is necessary: the entry permits more than
    /// before, and the exit itself has invalidated this processor's translations of the address
    /// (SDM vol. 3C, "Operations that Invalidate Cached Mappings").
    ///
    /// The hypervisor handles two parts of the exit itself before it enters again. If the VMCS
    /// field "IDT-vectoring information" is valid, the access was part of the delivery of an event,
    /// which has to be injected again (SDM vol. 3C, "Information for VM Exits During Event
    /// Delivery"). If it is not valid and bit 12 of the qualification is set ("NMI unblocking due
    /// to IRET"), set blocking by NMI in the guest's interruptibility state again; otherwise a
    /// second NMI could interrupt the handler of the first.
    pub fn handle_ept_violation(
        &self,
        view: View,
        address: u64,
        why: ExitQualification,
    ) -> ViolationOutcome {
        let at = Gfn::new(address / FRAME_BYTES);
        if !at.is_translated() {
            // A processor with more than 48 address bits: no entry can permit the access.
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
                // Another vCPU has resolved it, or this processor had an old translation.
                return ViolationOutcome::Resume;
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
                // Make the leaf writable first, then log the page: if the log is taken between the
                // two, the next log has the page. In the opposite order, a take in between would
                // leave a page that is writable and not logged, and its writes would be lost.
                self.log.mark_dirty(gfn);
                return ViolationOutcome::Resume;
            }
        }
    }

    /// Makes a leaf writable. Returns the guest frame that it maps, or `None` if it has changed
    /// meanwhile.
    fn grant(&self, start: Gfn, found: &EntryRef<'_>) -> Option<Gfn> {
        let new = found.entry.with_write(true);
        if !found.location.is_nested() {
            return found.try_replace(new).then_some(start);
        }
        // Another thread may map a nested view's entry to another frame at any time: freeze it to
        // read its GFN.
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
