//! The QEMU adapter: moves the guests of running, unmodified QEMU processes.
//!
//! # Model
//!
//! Everything begins with the path of a QMP socket. Its **peer** is QEMU's
//! process; QMP and that process's `/proc/PID/maps` together say where the
//! guest's memory is, three times over: in the guest (guest physical
//! addresses), in QEMU (host addresses) and in files. From then on:
//!
//! - the **pages** are read from and written to the files, by the engine;
//! - the **dirty log** and the **missing pages** go through a userfaultfd that
//!   QEMU's process was made to open (`hikkoshi-userfault`);
//! - the **device state** is QEMU's own migration stream. With the capability
//!   `x-ignore-shared` it leaves out the memory that is in shared files, so
//!   that what remains is small. It goes through a socket of which QEMU was
//!   given one end (`getfd`), so it works whatever user QEMU runs as.
//!
//! [`QemuSource`] and [`QemuDestination`] are the engine's `SourceGuest` and
//! `DestinationGuest`.
//!
//! # The switchover, as QEMU sees it
//!
//! ```text
//! source                                     destination (-incoming defer)
//!   migrate fd:…    guest runs                 stop   (so that the guest does
//!     set-up, video memory, …                          not run by itself)
//!   STOP            guest stopped  ─┐
//!   pre-switchover                  │ pause()
//!   migrate-continue                │
//!     device state ─────────────────┼──────▶   migrate-incoming fd:…
//!   completed, postmigrate          │          completed, paused
//!                          (commit) │          cont
//!                                   └─         RESUME
//! ```
//!
//! `pause-before-switchover` makes QEMU wait in `pre-switchover`, and so keeps
//! its set-up out of the time in which the guest is stopped. Up to commit the
//! way back is `migrate_cancel` or `cont` at the source; the destination's
//! `late-block-activate` sees to it that the images are still the source's.
//!
//! # Given back
//!
//! What is changed in QEMU is put back in the end, also after failures: its
//! migration capabilities and parameters, the descriptors in it, the write
//! protection of its memory. For the case that the engine is killed there is
//! [`undo()`], to be called by another process.
//!
//! # Taken up again
//!
//! What another program needs to go on with a guest that was handed over, or
//! may have been, is in [`SourceNotes`] and [`DestinationNotes`]: the process,
//! the RAM files, the descriptor that was left inside. Nothing of it is asked of
//! QEMU, which says nothing while its main loop waits for a page. A source whose
//! QEMU is gone has its memory still ([`RamFileSource`]).
//!
//! # Refused
//!
//! A guest that cannot be moved safely is refused before it is touched, with
//! the reason: see [`Refusal`], [`RamError`], [`AttachError`].
//!
//! # What is missing
//!
//! - QEMU on other machines than x86-64 (the injected system call knows only
//!   that), and before 7.2.
//! - Memory that comes and goes: virtio-mem, hot-plugging a DIMM while the
//!   guest is being moved (it is not noticed).
//! - Guests that are asleep (`suspended`): they must be woken first.
//! - Images on storage that only the source sees: QEMU's own mirroring has to
//!   move those beforehand.

mod attach;
mod destination;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod identity;
pub mod qmp;
mod settings;
mod source;
mod stream;

pub use attach::AttachError;
pub use attach::exclusive_access::ExclusiveAccessError;
pub use attach::preflight::{AllowedTypes, OLDEST_QEMU, Refusal};
pub use attach::probe::{GuestState, QmpListener};
pub use attach::process::ProcessError;
pub use attach::ram::RamError;
pub use attach::ram::free_space::FreeSpaceError;
pub use destination::exited::ExitedDestination;
pub use destination::{
    DestinationNotes, LoadError, PrepareError, QemuDestination, ReleaseDestinationError, RunError,
    SharedNotes, UserfaultError,
};
/// Whether this machine's kernel has the dirty log that pre-copy needs.
pub use hikkoshi_dirty::support as dirty_log_support;
pub use identity::namespaces::{FindProcessError, NamespaceIdentity};
pub use identity::{QemuExitedError, QemuIdentity, RamFileIdentity, ReattachError};
pub use qmp::monitor::MonitorError;
pub use settings::Settings;
pub use source::drain::DrainError;
pub use source::ram_files::RamFileSource;
pub use source::undo::{UndoError, UndoOutcome, undo};
pub use source::undo_record::UndoRecord;
pub use source::{
    PauseError, QemuSource, ReleaseSourceError, ResumeError, SaveError, SourceNotes, StartLogError,
};
