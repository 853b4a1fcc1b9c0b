//! The exit "EPT violation": what happened, and what the hypervisor does about it.

use crate::address::{FRAME_BYTES, Gfn, Level};
use crate::atomic::{Ordering, relax};
use crate::entry::Entry;
use crate::guest::{Guest, View};
use crate::host_memory::Memory;
use crate::walk::Position;

/// The exit qualification of an EPT violation (SDM vol. 3C, "Basic VM-Exit Information", table "Exit
/// Qualification for EPT Violations").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qualification(pub u64);

impl Qualification {
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
pub enum Violation {
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

impl<M: Memory> Guest<M> {
    /// Handles an EPT violation at guest-physical `address` (VMCS field "guest-physical address") of a
    /// virtual processor in `view`. Lock-free, but where a superpage is split and where another thread
    /// is changing this very entry.
    ///
    /// After [`Violation::Resume`] no processor has to forget anything: the entry allows more than
    /// before, and the exit itself has dropped what this processor remembered of the address (SDM
    /// vol. 3C, "Operations that Invalidate Cached Mappings").
    ///
    /// Two things of the exit are the hypervisor's, before it enters again. If the VMCS field "IDT-vectoring
    /// information" is valid, the access was part of delivering an event, which has to be injected anew
    /// (SDM vol. 3C, "Information for VM Exits During Event Delivery"). If it is not, and bit 12 of the
    /// qualification is set ("NMI unblocking due to IRET"), blocking by NMI has to be set in the guest's
    /// interruptibility state again, or a second NMI could come into the handler of the first.
    pub fn violation(&self, view: View, address: u64, why: Qualification) -> Violation {
        let at = Gfn::new(address / FRAME_BYTES);
        if !at.is_translated() {
            // A processor with more than 48 address bits: no entry could allow the access.
            return Violation::Absent(at);
        }
        let _inside = self.walkers.enter();
        loop {
            let Some(position) = self.walk(view, at, Level::Page) else {
                return Violation::NoView;
            };
            let entry = position.entry;
            if entry.is_busy() {
                relax();
                continue;
            }
            if entry.is_mmio() {
                return Violation::Mmio { address };
            }
            if !entry.is_leaf(position.level) {
                return Violation::Absent(at);
            }
            if allows(entry, why) {
                return Violation::Resume; // another processor was faster, or we had an old translation
            }
            if !allows(entry.with_write(entry.may_write()), why) {
                return Violation::Denied(at);
            }
            let start = at.align_down(position.level);
            if entry.is_logged() && position.level > Level::Page {
                if self.split_at(start, &position).is_err() {
                    return Violation::NoMemory(at);
                }
            } else if let Some(gfn) = self.grant(start, &position) {
                // Writable first, then into the log: if the log is taken between the two, the page is in
                // the next one. The other way round the log could be taken in between, and a write to a
                // page that is writable and in no log would be lost.
                self.log.mark(gfn);
                return Violation::Resume;
            }
        }
    }

    /// Makes a leaf writable; returns the guest frame it maps, or `None` if it changed meanwhile.
    fn grant(&self, start: Gfn, position: &Position<'_>) -> Option<Gfn> {
        let new = position.entry.with_write(true);
        if !position.location.is_nested() {
            return position.replace(new).then_some(start);
        }
        // A nested view's entry may be mapped anew at any time: held busy while asking what it maps.
        if !position.replace(Entry::BUSY) {
            return None;
        }
        let gfn = position.gfn(start);
        position.slot.store(new.0, Ordering::Release);
        Some(gfn)
    }
}

fn allows(entry: Entry, why: Qualification) -> bool {
    (!why.read() || entry.reads())
        && (!why.write() || entry.writes())
        && (!why.fetch() || entry.executes())
}
