//! KVM's own dirty logs, for monitors that embed the engine: [`KvmLog`].
//!
//! # Which log
//!
//! | log | a take costs | the guest pays | needs |
//! | --- | --- | --- | --- |
//! | [`manual_protect`](KvmLog::manual_protect) | one bit for each page of the slots it touches | one fault for each page written after its take | Linux 5.2 |
//! | [`ring`](KvmLog::ring) | what was written since the last take | the same, and an exit when its ring is full | Linux 5.11, rings from the VM's creation on |
//! | [`bitmap`](KvmLog::bitmap) | as manual protection, and protecting whole slots | one fault for each page written after a take of any page of its slot | |
//!
//! Manual protection is the one to begin with. `docs/dirty-logging.md` has measurements.
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
//! KVM logs writes by virtual processors and by itself for them, in pages of 4 KiB. It knows nothing
//! of writes by the monitor's threads, by vhost or by passed-through devices.
//!
//! Rings on processors with page-modification logging (PML, Intel): a write may reach the ring only
//! when its processor leaves the guest the next time. So it may be reported by a later take than
//! the next one; the take after the pause is complete.
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
mod ring;
mod ring_memory;
mod rings;
mod slots;
mod words;

pub use capability::CapabilityError;
pub use log::{KvmLog, KvmStartError};
pub use rings::{DirtyRings, RingError};
pub use slots::{MemorySlot, MemorySlots, SlotError};
