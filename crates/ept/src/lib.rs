//! Second-stage page tables that know what is dirty.
//!
//! For authors of hypervisors: the tables by which an Intel processor translates a guest's physical
//! addresses (extended page tables, EPT), a reverse map from guest frames to the entries that map them,
//! and a dirty log whose cost is proportional to what is dirty. `no_std` with `alloc`, no global state,
//! no dependency on the rest of hikkoshi.
//!
//! # Model
//!
//! A [`Guest`] has guest frames ([`Gfn`]), and one or more **views** ([`View`]): sets of tables with a
//! root each. [`View::MAIN`] is always there; others give the same guest other permissions
//! ([`Guest::add_view`]), or are the second stage of a guest's own guest
//! ([`Guest::add_nested_view`]). The hypervisor lends frames and a way to reach them
//! ([`FrameAllocator`], [`FrameAccess`]), and the crate asks it to disturb processors through
//! [`Processors`]. What the processor offers is in [`Capabilities`]; what goes into the VMCS comes from
//! [`Guest::eptp`] and [`Guest::pml_address`].
//!
//! - A **leaf** maps 4 KiB, 2 MiB or 1 GiB ([`Level`]). [`Guest::map`], [`Guest::unmap`],
//!   [`Guest::protect`], [`Guest::lookup`], [`Guest::split`], [`Guest::merge`], [`Guest::age`],
//!   [`Guest::age_all_views`].
//! - A page is absent, RAM, **log-dirty RAM**, or an emulated device ([`PageType`]).
//! - A [`TlbFlush`] is an **obligation**: processors may still use what the tables no longer say. Gather
//!   several with [`Guest::batch`], meet them with [`Guest::flush`].
//! - The **reverse map** holds, for every guest frame and leaf size, where its leaves are: a word where
//!   there is one mapping, a chain beyond. 0.196 % of the memory of a guest that is mapped once; 16 bytes for
//!   each further mapping of a frame or superpage ([`Guest::reverse_map_bytes`]).
//!
//! # Dirty log
//!
//! [`Guest::start_log`] starts logging in one of three forms ([`LogMethod`]), for a range or for everything,
//! while virtual processors run. [`Guest::take_log`] hands out and clears the log of a range, without
//! touching the rest: call it right before that range is sent. [`Guest::peek_log`] and [`Guest::count_dirty`] look
//! without clearing. Only what is found dirty is protected anew, found through the reverse map.
//!
//! In every form a log-dirty superpage is not writable, and is split by the first write to it, so that
//! the log is one of 4 KiB pages.
//!
//! What counts as a write is the processor's to say: with accessed and dirty flags on (they are, where
//! [`Capabilities`] has them) its own accesses to a guest's page tables count as writes, so pages that
//! hold page tables can be in the log after a mere walk (SDM vol. 3C, "Accessed and Dirty Flags for EPT").
//!
//! # Two exits
//!
//! - *EPT violation* (basic reason 48): [`Guest::handle_ept_violation`].
//! - *Page-modification log full* (basic reason 62): [`Guest::drain_pml`].
//!
//! ```
//! use std::cell::RefCell;
//!
//! use hikkoshi_ept::testing::{Access, Cpu, Exit, TestMemory};
//! use hikkoshi_ept::*;
//!
//! struct Vm {
//!     guest: Guest<TestMemory>,
//!     vcpu: Vcpu,
//!     // A processor in software, that is never in the guest while the hypervisor works.
//!     cpu: RefCell<Cpu>,
//! }
//!
//! // On hardware: kick the processors, INVEPT, VMREAD and VMWRITE.
//! impl Processors for Vm {
//!     fn invalidate(&self, flush: &TlbFlush) {
//!         for eptp in self.guest.eptps(flush) {
//!             self.cpu.borrow_mut().invalidate(eptp, flush);
//!         }
//!     }
//!
//!     fn drain(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
//!         let mut cpu = self.cpu.borrow_mut();
//!         cpu.pml_index = drain(self.vcpu, cpu.pml_index);
//!     }
//!
//!     fn set_pml(&self, on: bool) {
//!         let mut cpu = self.cpu.borrow_mut();
//!         cpu.pml = if on { self.guest.pml_address(self.vcpu) } else { None };
//!         cpu.pml_index = PML_HEAD_INDEX;
//!     }
//! }
//!
//! impl Vm {
//!     /// The guest writes to `address`. True if a device has to be emulated.
//!     fn write(&self, address: u64) -> bool {
//!         let mut cpu = self.cpu.borrow_mut();
//!         loop {
//!             match cpu.access(self.guest.memory(), address, Access::Write) {
//!                 Ok(_) => return false,
//!                 Err(Exit::PmlFull) => {
//!                     cpu.pml_index = self.guest.drain_pml(self.vcpu, cpu.pml_index);
//!                 }
//!                 Err(Exit::Violation { address, qualification }) => {
//!                     match self.guest.handle_ept_violation(View::MAIN, address, qualification) {
//!                         ViolationOutcome::Resume => {} // enter again
//!                         ViolationOutcome::Mmio { .. } => return true,
//!                         other => panic!("map the page, or tell the guest: {other:?}"),
//!                     }
//!                 }
//!                 Err(broken) => panic!("the tables are broken: {broken:?}"),
//!             }
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 32 MiB of memory from host address 4 GiB on, in superpages, and a device.
//! let guest = Guest::new(TestMemory::new(100), 16 * 1024, 1, Capabilities::ALL)?;
//! let (ram, device) = (GfnRange::from_len(Gfn::new(0), 8192), Gfn::new(9000));
//! guest.map(View::MAIN, &Mapping::ram(ram, Frame::containing(4 << 30)))?;
//! guest.map_mmio(View::MAIN, GfnRange::from_len(device, 1))?;
//! let vcpu = guest.add_vcpu()?;
//! let cpu = RefCell::new(Cpu::new(View::MAIN, guest.main_eptp(), guest.capabilities()));
//! let vm = Vm { guest, vcpu, cpu };
//!
//! vm.guest.start_log(LogMethod::Pml, ram, &vm)?;
//! for address in [0x5000, 0x5008, 0x20_0000] {
//!     assert!(!vm.write(address));
//! }
//! assert!(vm.write(device.address()));
//!
//! // A migration takes the log of the range that it is about to send, and then reads the pages.
//! let mut dirty = Vec::new();
//! vm.guest.take_log(ram, &vm, &mut |run| dirty.push(run))?;
//! assert_eq!(dirty, [5, 0x200].map(|page| GfnRange::from_len(Gfn::new(page), 1)));
//! assert_eq!(vm.guest.count_dirty(ram, &vm)?, 0);
//!
//! // Logging ends, and 4 MiB go back to the host.
//! vm.guest.stop_log(ram, &vm)?;
//! let flush = vm.guest.unmap(View::MAIN, GfnRange::from_len(Gfn::new(0), 1024));
//! vm.guest.flush(flush, &vm);
//! # Ok(())
//! # }
//! ```
//!
//! # Concurrency
//!
//! Everything takes `&self`. What virtual processors do on their way (walking, faulting on a log-dirty
//! page, emptying a page-modification log), and taking a log, is lock-free: compare-and-exchange on the
//! entry, an atomic bit. Filling and splitting hold *one entry* busy for a moment; others wait for it, the
//! guest tries again. The reverse map's chains are read without a lock; whoever takes a mapping out of one
//! holds that chain's word for a moment. Two short locks are left, one on the free cells of chains, one on
//! waiting for others. Pages that are taken back by guest frame ([`Guest::unmap_all_views`]) are looked for
//! again if leaves of a nested view were put together meanwhile. Whoever starts or stops a log while another does is told so, and does not wait.
//!
//! [`Guest::flush`], [`Guest::start_log`] and [`Guest::stop_log`] wait until the operations of other
//! threads that were under way have ended, and for the processors. Long operations are made of parts (at most
//! 128 MiB of a log, 1 GiB of an unmapping), and one such part is waited for. No part has in its middle
//! a call to the hypervisor's [`Processors`], so an exit handler may use the guest meanwhile.
//! Virtual processors come and go at any time ([`Guest::add_vcpu`]).
//!
//! The orders that make this right (an entry is made writable *before* the page goes into the log; a
//! flag goes into the log *before* it goes out of the entry; what is reported is *always* flushed; a new
//! setting is known to all *before* the leaves are visited) are argued where they are kept, and tried in
//! every interleaving by the loom models in `tests/loom/`.
//!
//! # What is missing
//!
//! - Five-level tables, and other processors' formats (AMD's nested tables, Arm's stage 2).
//! - Mode-based execute control, sub-page permissions, `#VE`, supervisor shadow stacks: their bits are
//!   never set.
//! - Memory that grows: a guest's size is fixed. Empty tables are given back when a range that covers
//!   them is unmapped, and not before.
//! - Page-modification logging for nested views: their pages are logged by write protection.
//! - Superpages are not put together again by themselves when a log stops: [`Guest::merge`].

#![no_std]

extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("hikkoshi-ept needs a 64-bit host: addresses and frame numbers must fit a usize");

mod address;
mod age;
mod atomic;
mod attributes;
mod bitmap;
mod capabilities;
mod dirty_bitmap;
mod dirty_log;
mod entry;
mod eptp;
mod guest;
mod host_memory;
mod lookup;
mod map;
mod merge;
mod merge_seqcount;
mod processors;
mod protect;
mod rcu;
mod reclaim;
mod rmap;
mod spinlock;
mod split;
pub mod testing;
mod tlb_flush;
mod unmap;
mod view;
mod violation;
mod walk;

pub use address::{ENTRIES, FRAME_BYTES, Frame, Gfn, GfnRange, INDEX_BITS, Level, MAX_PAGES};
pub use age::AgeError;
pub use atomic::AtomicU64;
pub use attributes::{MemoryType, PageType, Permissions};
pub use capabilities::Capabilities;
pub use dirty_log::{
    LogMethod, PML_ENTRIES, PML_HEAD_INDEX, StartError, StopError, TakeError, Vcpu, VcpuError,
};
pub use entry::Entry;
pub use eptp::Eptp;
pub use guest::{CreateError, Guest, ReverseMapBytes};
pub use host_memory::{FrameAccess, FrameAllocator, HostMemory, Table};
pub use lookup::Lookup;
pub use map::{MapError, Mapping};
pub use merge::MergeError;
pub use processors::Processors;
pub use split::SplitError;
pub use tlb_flush::TlbFlush;
pub use view::{MAX_VIEWS, View};
pub use violation::{ExitQualification, ViolationOutcome};
