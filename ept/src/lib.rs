//! Second-stage page tables (Intel EPT) with a reverse map and a dirty log.
//!
//! This crate is for authors of hypervisors. It manages the extended page tables (EPT) with which
//! an Intel processor translates guest-physical addresses, a reverse map from guest frames to the
//! entries that map them, and a dirty log whose cost is proportional to the number of dirty pages.
//! It is `no_std` with `alloc`, has no global state, and does not depend on the other crates of
//! hikkoshi.
//!
//! # Model
//!
//! A [`Guest`] has guest frames ([`Gfn`]) and one or more **views** ([`View`]): sets of tables with
//! a root each. [`View::MAIN`] always exists. Further views give the same guest other permissions
//! ([`Guest::add_view`]), or are the second stage of a nested (L2) guest
//! ([`Guest::add_nested_view`]). The hypervisor provides frames and access to them
//! ([`FrameAllocator`], [`FrameAccess`]), and implements [`Processors`], which the crate calls to
//! interrupt processors. [`Capabilities`] describes the processor's features. The VMCS fields come
//! from [`Guest::eptp`] and [`Guest::pml_address`].
//!
//! - A **leaf** maps 4 KiB, 2 MiB or 1 GiB ([`Level`]). The operations are [`Guest::map`],
//!   [`Guest::unmap`], [`Guest::protect`], [`Guest::lookup`], [`Guest::split`], [`Guest::merge`],
//!   [`Guest::age`] and [`Guest::age_all_views`].
//! - A page is absent, RAM, **log-dirty RAM**, or an emulated device ([`PageType`]).
//! - A [`TlbFlush`] is a **pending TLB flush**: processors may still use translations that the
//!   tables no longer contain. Combine several with [`Guest::batch`], and do them with
//!   [`Guest::flush`].
//! - The **reverse map** stores for every guest frame and leaf size where its leaves are: one word
//!   for one mapping, a chain for several. It takes 0.196 % of the memory of a guest that is mapped
//!   once, and 16 bytes for each further mapping of a frame or superpage
//!   ([`Guest::reverse_map_bytes`]).
//! - **Memory slots** ([`MemorySlots`]) say where guest frames are in the hypervisor's address
//!   space, by which a host takes memory back: [`Guest::unmap_host`], [`Guest::age_host`].
//!
//! # Dirty log
//!
//! [`Guest::start_log`] starts logging for a range or for the whole guest, while vCPUs run, by one
//! of three methods ([`LogMethod`]). [`Guest::take_log`] returns and clears the log of a range
//! without accessing the rest: call it right before that range is sent. [`Guest::peek_log`] and
//! [`Guest::count_dirty`] read without clearing. A take rearms only the pages that are dirty, and
//! finds their leaves through the reverse map.
//!
//! The crate in `dirty-log/` makes this log a `DirtyLog` (`EptLog`), with which hikkoshi's engine
//! moves a guest, and gives several clients a log of their own (`SharedLog`).
//!
//! With every method a log-dirty superpage is write-protected, and the first write splits it, so
//! that the log has 4 KiB granularity.
//!
//! The processor defines what a write is. With accessed and dirty flags enabled (they are, if
//! [`Capabilities`] has them), its own accesses to a guest's page tables count as writes. So pages
//! that hold page tables can be logged after a walk that changes nothing (SDM vol. 3C, "Accessed
//! and Dirty Flags for EPT").
//!
//! # Exits to handle
//!
//! - *EPT violation* (basic reason 48): [`Guest::handle_ept_violation`].
//! - *Page-modification log full* (basic reason 62): [`Guest::drain_pml`].
//!
//! # Example
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
//!     // A software processor, which is never in the guest while the hypervisor runs.
//!     cpu: RefCell<Cpu>,
//! }
//!
//! // On hardware: interrupt the processors; INVEPT, VMREAD and VMWRITE.
//! impl Processors for Vm {
//!     fn invalidate(&self, flush: &TlbFlush) {
//!         for eptp in self.guest.eptps(flush) {
//!             self.cpu.borrow_mut().invalidate(eptp, flush);
//!         }
//!     }
//!
//!     fn drain_pml(&self, drain: &dyn Fn(Vcpu, u16) -> u16) {
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
//!     /// The guest writes to `address`. Returns true if a device has to be emulated.
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
//!                         other => panic!("map the page, or report an error to the guest: {other:?}"),
//!                     }
//!                 }
//!                 Err(exit) => panic!("misconfigured tables: {exit:?}"),
//!             }
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // 32 MiB of memory at host address 4 GiB, mapped by superpages, and a device.
//! let guest = Guest::new(TestMemory::new(100), 16 * 1024, 1, Capabilities::ALL)?;
//! let (ram, device) = (GfnRange::from_len(Gfn::new(0), 8192), Gfn::new(9000));
//! guest.map(View::MAIN, &Mapping::ram(ram, HostFrame::containing(4 << 30)))?;
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
//! // A migration takes the log of a range right before it sends it, and then reads the pages.
//! let mut dirty = Vec::new();
//! vm.guest.take_log(ram, &vm, &mut |run| dirty.push(run))?;
//! assert_eq!(dirty, [5, 0x200].map(|page| GfnRange::from_len(Gfn::new(page), 1)));
//! assert_eq!(vm.guest.count_dirty(ram, &vm)?, 0);
//!
//! // Stop logging, and return 4 MiB to the host.
//! vm.guest.stop_log(ram, &vm)?;
//! let flush = vm.guest.unmap(View::MAIN, GfnRange::from_len(Gfn::new(0), 1024));
//! vm.guest.flush(flush, &vm);
//! # Ok(())
//! # }
//! ```
//!
//! # Concurrency
//!
//! All operations take `&self`. The operations on a vCPU's path (walking, handling a violation on a
//! log-dirty page, draining a page-modification log) and taking a log are lock-free: they compare
//! and exchange the entry and set or clear atomic bits. Mapping and splitting *freeze one entry*
//! for a short time; other threads wait for it, and the guest retries its access. The chains of the
//! reverse map are read without a lock; a thread that removes a mapping from a chain locks that
//! chain's word for a short time. There are two other short locks: for the free cells of chains,
//! and for RCU synchronization. [`Guest::unmap_all_views`] repeats its search if leaves of a nested
//! view were merged meanwhile. If a log is started or stopped while another thread does so, the
//! call returns an error and does not wait.
//!
//! [`Guest::flush`], [`Guest::start_log`] and [`Guest::stop_log`] wait for operations that other
//! threads have started, and for the processors. Long operations run in parts (at most 128 MiB of a
//! log, 1 GiB of an unmap), and the wait is for one such part. No part calls the hypervisor's
//! [`Processors`], so an exit handler can use the guest meanwhile. vCPUs can be added and removed
//! at any time ([`Guest::add_vcpu`]).
//!
//! Correctness depends on these orders. An entry becomes writable *before* the page is logged. A
//! dirty flag is logged *before* it is removed from the entry. Every reported page is *always*
//! flushed. All threads know a new setting *before* the leaves are visited. The reasons are given
//! where each order is implemented, and the loom models in `tests/loom/` explore the interleavings.
//!
//! # What is missing
//!
//! - Five-level tables and the formats of other processors (AMD's nested page tables, Arm's stage
//!   2) are not supported.
//! - Mode-based execute control, sub-page permissions, `#VE` and supervisor shadow stacks are not
//!   supported: their bits are never set.
//! - The size of a guest is fixed. Empty tables are freed only when a range that covers them is
//!   unmapped.
//! - Page-modification logging is not used for nested views: their pages are logged by write
//!   protection.
//! - Superpages are not merged automatically when a log stops: call [`Guest::merge`].

#![no_std]

extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("hikkoshi-ept requires a 64-bit host: addresses and frame numbers must fit a usize");

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
mod memory_slots;
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

pub use address::{ENTRIES, FRAME_BYTES, Gfn, GfnRange, HostFrame, Level, MAX_PAGES};
pub use age::AgeError;
pub use atomic::AtomicU64;
pub use attributes::{MemoryType, PageType, Permissions};
pub use capabilities::Capabilities;
pub use dirty_log::{LogMethod, PML_HEAD_INDEX, StartError, StopError, TakeError, Vcpu, VcpuError};
pub use entry::Entry;
pub use eptp::Eptp;
pub use guest::{CreateError, Guest, ReverseMapBytes};
pub use host_memory::{FrameAccess, FrameAllocator, HostMemory, Table};
pub use lookup::Lookup;
pub use map::{MapError, Mapping};
pub use memory_slots::{MemorySlot, MemorySlots, SlotError};
pub use merge::MergeError;
pub use processors::Processors;
pub use split::SplitError;
pub use tlb_flush::TlbFlush;
pub use view::{MAX_VIEWS, View};
pub use violation::{ExitQualification, ViolationOutcome};
