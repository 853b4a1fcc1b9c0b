//! KVM's own dirty logs, for monitors that embed the engine: [`KvmLog`].
//!
//! # Which log
//!
//! * [`manual_protect`](KvmLog::manual_protect): a take reads one bit for each page of the slots
//!   that it touches, and protects what it reports. The one to begin with. Linux 5.2, better 5.8.
//! * [`ring`](KvmLog::ring): a take reads what was written since the last take of any range. So it
//!   suits large guests that write little. It needs rings from the VM's creation on, and costs an
//!   exit whenever a ring is full. Linux 5.11.
//! * [`bitmap`](KvmLog::bitmap): as manual protection, but a take protects whole slots. Every KVM.
//!
//! In all of them the guest pays one fault for the first write to a page after it was protected.
//! With rings and the bitmap, the take of any range protects pages of other ranges again, too, so
//! a page may cost several faults until it is taken. `docs/dirty-logging.md` has measurements.
//!
//! Bitmap and manual protection read whole slots, and the engine takes 2 MiB at a time: give a
//! large guest's RAM to KVM in slots of 1 GiB or less.
//!
//! # What the monitor does
//!
//! 1. With rings: [`DirtyRings::enable`] after it has created the VM, [`DirtyRings::add`] for each
//!    virtual processor.
//! 2. When a migration starts: it describes its memory slots ([`MemorySlots::new`]) and starts
//!    a log. The log sets and clears the slots' flags; as long as it runs, the monitor neither adds
//!    nor changes these slots.
//! 3. With rings: when `KVM_RUN` ends with `KVM_EXIT_DIRTY_RING_FULL` (31), it calls
//!    [`KvmLog::harvest`] and runs the processor again.
//! 4. It calls [`KvmLog::mark`] for guest memory that it writes itself: its devices, vhost.
//! 5. It pauses the guest, which lets every processor leave `KVM_RUN`, before the last take.
//!
//! # What is reported, and what is not
//!
//! KVM logs writes by virtual processors and by itself for them, in pages of 4 KiB. It knows
//! nothing of writes by the monitor's threads, by vhost or by passed-through devices.
//!
//! Rings on processors with page-modification logging (PML, Intel): a write may reach the ring only
//! when its processor leaves the guest the next time. So it may be reported by a later take than
//! the next one; the take after the pause is complete.
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use hikkoshi_dirty::DirtyLog;
//! use hikkoshi_dirty::kvm::{DirtyRings, KvmLog, MemorySlot, MemorySlots};
//! use hikkoshi_pages::{Page, RamLayout};
//! use kvm_bindings::{KVM_EXIT_DIRTY_RING_FULL, kvm_userspace_memory_region};
//! use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
//!
//! # fn monitor(layout: &RamLayout, region: kvm_userspace_memory_region)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let vm = Arc::new(Kvm::new()?.create_vm()?);
//! let rings = Arc::new(DirtyRings::enable(&vm, 4096)?);
//! let mut vcpu = vm.create_vcpu(0)?;
//! rings.add(&vcpu)?;
//!
//! // SAFETY: the memory at `region.userspace_addr` stays mapped as long as the VM exists.
//! unsafe { vm.set_user_memory_region(region)? };
//!
//! // A migration starts.
//! let slot = MemorySlot { region, first_page: Page::new(0) };
//! // SAFETY: the VM has exactly this slot, and keeps it until the log was dropped.
//! let slots = unsafe { MemorySlots::new(vm, layout, vec![slot])? };
//! let log = KvmLog::ring(slots, rings)?;
//!
//! // The thread of the processor.
//! fn run(vcpu: &mut VcpuFd, log: &KvmLog) -> Result<(), Box<dyn std::error::Error>> {
//!     loop {
//!         match vcpu.run()? {
//!             VcpuExit::Unsupported(KVM_EXIT_DIRTY_RING_FULL) => log.harvest()?,
//!             _other => return Ok(()),
//!         }
//!     }
//! }
//! run(&mut vcpu, &log)?;
//! log.take(layout.all(), &mut |run| println!("{run} were written"))?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is missing
//!
//! * Memory that is in two slots (an alias, SMM's address space) is refused.
//! * The bitmap beside the rings (arm64) is read where KVM offers it; this was never run, because
//!   x86-64 does not offer it.

mod bitmap;
mod capability;
mod ioctl;
mod log;
mod manual_protect;
mod method;
mod ring;
mod ring_memory;
mod rings;
mod slots;
mod words;

pub use crate::capability_error::CapabilityError;
pub use log::KvmLog;
pub use method::KvmStartError;
pub use rings::{DirtyRings, RingError};
pub use slots::{MemorySlot, MemorySlots, SlotError};
