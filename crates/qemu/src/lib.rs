//! The QEMU adapter: moves the guests of running, unmodified QEMU processes.
//!
//! # Model
//!
//! The only input is a monitor ([`qmp::Monitor`]), mostly the path of a QMP socket. The socket's
//! **peer** is QEMU's process. QMP and that process's `/proc/PID/maps` together describe the
//! guest's memory in three ways: in the guest (guest physical addresses), in QEMU (host addresses)
//! and in files. Then:
//!
//! - the engine reads and writes the **pages** in the files;
//! - the **dirty log** and the **missing pages** use a userfaultfd that is created
//!   inside QEMU's process by an injected system call (`hikkoshi-userfault`);
//! - the **device state** is what `xen-save-devices-state` writes: the devices' sections of
//!   QEMU's migration stream, without memory. [`stream`] writes a frame around them, which the
//!   destination's QEMU loads as a migration. Files and sockets are passed to QEMU as descriptors,
//!   so it works with any user that QEMU runs as.
//!
//! [`QemuSource`] and [`QemuDestination`] implement the engine's `SourceGuest` and
//! `DestinationGuest`.
//!
//! # Modules
//!
//! | module | holds |
//! | --- | --- |
//! | `check` | whether and how a guest can be moved; changes nothing |
//! | `source`, `destination` | the two sides of a move |
//! | `measure` | the dirty log of a guest that stays where it is |
//! | `command_line` | the command line that a destination needs |
//! | `identity` | what proves that a process is still the same QEMU |
//! | `migration_settings` | QEMU's settings during a move |
//! | `attach` | attaching to a QEMU, and the checks before it |
//! | `disks` | the guest's disks: which they are, and copying them |
//! | `network` | the guest's network cards, and the tap devices behind them |
//! | `device_tree` | the guest's devices and their places on the buses |
//! | `ram` | the guest's RAM blocks, in the guest, in QEMU's process and in files |
//! | `guest_parts` | what a part of a guest means for a move |
//! | `process` | QEMU's process: memory areas, files, exclusive access, command line |
//! | [`stream`] | QEMU's migration stream: its bytes, and its socket |
//! | [`qmp`] | the QMP client, and command sequences that both sides use |
//!
//! # Layers
//!
//! A module uses only those in lines below its own:
//!
//! ```text
//! check  fuzzing
//! source  destination  measure
//! command_line  identity  migration_settings
//! attach
//! disks  network
//! device_tree
//! ram
//! guest_parts  process  stream
//! qmp
//! ```
//!
//! # Vocabulary
//!
//! - *identity*: the process number, start time, boot and namespaces of a QEMU, and the
//!   files of its guest's memory. With it another program can *reattach* after the engine
//!   has ended.
//! - *reattach info*: what is stored for reattaching ([`SourceReattachInfo`],
//!   [`DestinationReattachInfo`]).
//! - *undo record*: the changes to a source that another process undoes if the engine is
//!   killed before commit ([`UndoRecord`]).
//! - *stale userfaultfd*: one of a killed engine inside QEMU.
//! - *drain*: waiting until device writes in progress have landed in guest memory.
//!
//! # The switchover
//!
//! ```text
//! source                                     destination (-incoming defer)
//!   checks, undo record, add-fd                stop   (so that QEMU does not
//!                   guest runs                         start the guest itself)
//!                                              migrate-incoming fd:…
//!   stop                           ─┐
//!   STOP            guest paused    │ pause()
//!   xen-save-devices-state          │
//!     device state ─────────────────┼──────▶   the stream is written to QEMU
//!   paused, images released         │          completed, paused
//!                          (commit) │          cont
//!                                   └─         RESUME
//! ```
//!
//! Until commit, [`undo()`] resumes the guest at the source and takes the images back; the command
//! `cont` of another program is refused from the save on (`disks/move_lock.rs`). With
//! `late-block-activate` at the destination the images still belong to the source until then. The
//! images of a guest that its owner had paused are released when it was handed over.
//!
//! Before the pause the guest is marked (`qmp/pause_mark.rs`): the state of a guest
//! that has moved is `paused`, and it must not be moved a second time.
//!
//! # Restoring
//!
//! Everything that was changed in QEMU is restored at the end, also after failures: its
//! migration capabilities and parameters, its descriptors, the write protection of its
//! memory. If the engine is killed, another process calls [`undo()`].
//!
//! # Reattaching
//!
//! [`SourceReattachInfo`] and [`DestinationReattachInfo`] contain what another program needs to
//! continue a migration of a guest that was, or may have been, handed over: the process, the RAM
//! files, the descriptor inside QEMU. Reattaching does not query QEMU, which does not answer while
//! its main loop waits for a page. If the source's QEMU has ended, its RAM files still hold the
//! memory ([`RamFileSource`]).
//!
//! # Refusals
//!
//! A guest that cannot be moved safely is refused before anything is changed, with the
//! reason: see [`Refusal`], [`RamError`], [`AttachError`].
//!
//! # What is missing
//!
//! - QEMU on other architectures than x86-64 (which the injected system call supports),
//!   and before 7.2.
//! - Memory that is plugged or unplugged during the move: virtio-mem (refused), DIMMs (not
//!   noticed).
//! - Guests in the state `suspended`: they must be woken first.

mod attach;
mod check;
mod command_line;
mod destination;
mod device_tree;
mod disks;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod guest_parts;
mod identity;
mod measure;
mod migration_settings;
mod network;
mod process;
pub mod qmp;
mod ram;
mod source;
pub mod stream;

pub use attach::AttachError;
pub use attach::preflight::jobs::Job;
pub use attach::preflight::{Allowed, Excludes, Refusal, untested_libvirt_qemu};
pub use attach::probe::{GuestState, LastMigration};
pub use attach::processors::asynchronous_faults::AsynchronousFaultSupport;
pub use check::{
    Checked, CheckedGuest, CopiedPart, GuestPart, Kernel, MemoryPart, NoUserfaultfd,
    OfferedMachine, PageHolder, Privileges, Verdict, check, check_by,
};
pub use command_line::DestinationLine;
pub use destination::after_exit::ExitedDestination;
pub use destination::piped::{
    HasRunError, LoadedGuest, MachineOwner, NotRun, PipedError, PipedGuest, PipedMachine,
    StreamPipe,
};
pub use destination::{
    DestinationReattachInfo, QemuDestination, SharedReattachInfo, UserfaultError,
};
pub use disks::{ChosenDisks, DiskSelection, OfferedDisks, SelectError, shared_file_system};
/// Whether this machine's kernel has the dirty log that pre-copy needs.
pub use hikkoshi_dirty::support as dirty_log_support;
pub use hikkoshi_memory::GuestRam;
pub use identity::{HOLD, QemuIdentity, RamFileIdentity, RamIdentity, ReattachError};
pub use measure::{MeasureError, QemuMeasurement, StopMeasuringError};
pub use migration_settings::Settings;
pub use network::OwnedCard;
pub use network::overview::CardPart;
pub use process::ProcessError;
pub use process::exclusive_access::ExclusiveAccessError;
pub use process::namespaces::{FindProcessError, NamespaceIdentity};
pub use process::running::{RunningQemu, running_qemus};
pub use qmp::pause_mark::MOVED_STATE;
pub use qmp::{QmpListener, RESUME_BY_HAND, ResumeError};
pub use ram::RamError;
pub use ram::enough_memory::Overcommit;
pub use ram::not_enough_memory::NotEnoughMemory;
pub use source::guest_now::GuestNow;
pub use source::quit::QuitError;
pub use source::ram_files::RamFileSource;
pub use source::undo::{UndoError, UndoOutcome, undo};
pub use source::undo_record::UndoRecord;
pub use source::{QemuSource, SourceReattachInfo};
