//! Undoes, from another process, the changes of a killed engine to a source.
//!
//! If the engine is killed between pausing the guest and commit, the guest would stay
//! paused. So a guard process has the [`UndoRecord`] and calls [`undo()`] if the
//! engine dies before commit. **Never after commit**: then the guest may run
//! elsewhere.
//!
//! The kernel closes the engine's own resources: its QMP connection and its copy of the
//! userfaultfd. This module undoes the rest: the pause, with its mark, the userfaultfd's copy
//! inside QEMU, the settings, the file for the device state, the copies of disks, and marks on
//! their images.

use std::sync::Arc;

use error_reporter::Report;
use hikkoshi_engine::CancelFlag;
use hikkoshi_userfault::{CloseRemoteError, close_remote};
use thiserror::Error;

use super::resume_guest::resume;
use super::undo_record::UndoRecord;
use crate::attach::stale_userfaultfds::is_dirty_log;
use crate::disks;
use crate::disks::copy_error::EndCopiesError;
use crate::disks::end_copies;
use crate::disks::move_lock;
use crate::identity::QemuIdentity;
use crate::migration_settings;
use crate::process::exclusive_access::{self, ExclusiveAccessError};
use crate::process::namespaces::FindProcessError;
use crate::process::{self, ProcessError};
use crate::qmp;
use crate::qmp::ResumeError;
use crate::qmp::pause_mark;
use crate::qmp::{Client, ConnectError, Monitor, QmpError};
use crate::stream::remove_save_files;

/// The result of [`undo()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOutcome {
    /// QEMU runs and everything is undone. The guest's state is `running`, or
    /// `paused` if its owner paused it.
    Restored {
        /// QEMU's name for the state.
        state: String,
    },
    /// QEMU has ended.
    QemuExited,
}

/// Not everything could be undone.
#[derive(Debug, Error)]
pub enum UndoError {
    /// The connection to the monitor failed.
    #[error("undoing an interrupted migration")]
    Connect(#[from] ConnectError),
    /// QEMU's process cannot be used.
    #[error("undoing an interrupted migration")]
    Process(#[from] ProcessError),
    /// It is not known whether the process still exists.
    #[error("undoing an interrupted migration")]
    FindProcess(#[from] FindProcessError),
    /// Another process listens on the QMP socket.
    #[error(
        "undoing an interrupted migration: process {found} listens on the QMP socket now, not the \
         QEMU of the migration ({expected}); it was left alone"
    )]
    AnotherQemu {
        /// The process in the record.
        expected: u32,
        /// The process that listens.
        found: u32,
    },
    /// Another hikkoshi process has the guest.
    #[error("undoing an interrupted migration (nothing was changed)")]
    Occupied(#[from] ExclusiveAccessError),
    /// Resuming the guest failed.
    #[error("undoing an interrupted migration")]
    Resume(#[from] ResumeError),
    /// Closing the userfaultfd failed.
    #[error("undoing an interrupted migration")]
    Userfault(#[from] CloseRemoteError),
    /// Restoring the settings failed.
    #[error("undoing an interrupted migration: restoring QEMU's migration settings")]
    Settings(#[source] QmpError),
    /// What copied the guest's disks was not removed.
    #[error(
        "undoing an interrupted migration: removing the copies of the guest's disks from QEMU \
         (repeat 'hikkoshi migrate --resume'; by hand: QMP command 'stop', then \
         'block-job-cancel' with force for everything called hikkoshi-disk-*, 'blockdev-del' when \
         those have ended, and 'cont' if the guest ran)"
    )]
    Copies(#[source] EndCopiesError),
    /// A QMP command failed.
    #[error("undoing an interrupted migration")]
    Qmp(#[from] QmpError),
}

/// Undoes the recorded changes: resumes the guest if we paused it and it ran before,
/// closes the dirty log in QEMU, restores the settings.
///
/// `monitor` is that of the identity. Calling it again, or without any changes, is harmless. A
/// guest that its owner paused stays paused. Migrations of other programs are left alone.
///
/// # Errors
///
/// See [`UndoError`]. As much as possible was undone, first of all the pause.
pub fn undo(
    identity: &QemuIdentity,
    record: &UndoRecord,
    monitor: &dyn Monitor,
) -> Result<UndoOutcome, UndoError> {
    let Some(process) = identity.process()? else {
        return Ok(UndoOutcome::QemuExited);
    };
    // Another engine, with another journal, may have started a migration.
    let _lock = match exclusive_access::acquire(&process) {
        Ok(lock) => Some(lock),
        Err(error @ ExclusiveAccessError::Busy { .. }) => return Err(error.into()),
        Err(ExclusiveAccessError::Lock { .. }) if !process.is_alive() => {
            return Ok(UndoOutcome::QemuExited);
        }
        // Resuming the guest is more important.
        Err(error) => {
            tracing::warn!(error = %Report::new(&error), "undoing a migration without exclusive access to the guest");
            None
        }
    };
    if record.stopped.is_some() {
        match monitor.wait_until_reachable() {
            Err(_) if !process.is_alive() => return Ok(UndoOutcome::QemuExited),
            reachable => reachable?,
        }
    }
    let mut slot = None;
    let never = CancelFlag::new();
    let timeouts = qmp::reconnect::reconnect_timeouts(monitor);
    let client =
        match qmp::reconnect::get_or_connect(&mut slot, monitor, &process, timeouts, &never) {
            Ok(client) => client,
            Err(_) if !process.is_alive() => return Ok(UndoOutcome::QemuExited),
            Err(ConnectError::AnotherProcess {
                expected, found, ..
            }) => return Err(UndoError::AnotherQemu { expected, found }),
            Err(error) => return Err(error.into()),
        };
    // Before the guest runs: they cannot be ended then. It is paused for that if it runs now.
    let copies = match record.copies {
        0 => Ok(()),
        copies => end_copies::end(client, copies.into()).map_err(UndoError::Copies),
    };
    let guest = undo_stop(client, monitor, record);
    let log = close_dirty_logs(&process);
    let settings = undo_settings(client, record);
    // Also if it was killed before the guest was paused, or marked.
    let node = move_lock::remove(client);
    // The offer of the guest may have been interrupted.
    let marks = disks::remove_left_marks(client);
    let state = guest?;
    copies?;
    log?;
    settings?;
    node?;
    marks?;
    Ok(UndoOutcome::Restored { state })
}

fn undo_stop(
    client: &mut Client,
    monitor: &dyn Monitor,
    record: &UndoRecord,
) -> Result<String, UndoError> {
    let Some(ran) = record.stopped else {
        return Ok(crate::qmp::migration_status::run_state(client)?.status);
    };
    // We mark the guest before we pause it, and remove the mark after it is resumed. Without the
    // mark, a paused guest or a migration belongs to another program.
    if !pause_mark::is_set(client)? {
        return Ok(crate::qmp::migration_status::run_state(client)?.status);
    }
    Ok(resume(client, monitor, ran, true)?)
}

fn close_dirty_logs(process: &Arc<hikkoshi_linux::Process>) -> Result<(), UndoError> {
    for stale in process::userfaults(process)? {
        if is_dirty_log(&stale) {
            close_remote(process, stale.number)?;
        }
    }
    Ok(())
}

fn undo_settings(client: &mut Client, record: &UndoRecord) -> Result<(), UndoError> {
    migration_settings::apply(client, &record.settings).map_err(UndoError::Settings)?;
    remove_save_files(client).map_err(UndoError::Settings)
}
