//! Undoing, from another process, what a killed engine did to a source.
//!
//! If the engine is killed between stopping the guest and commit, the guest
//! would stay stopped for good. So a guardian process gets an [`UndoRecord`]
//! and, should the engine die before commit, calls [`undo()`]. **Never after
//! commit**: the guest may run elsewhere then.
//!
//! What dies with the engine dies by itself: its QMP connection, its end of
//! the device state's socket (QEMU's save fails then, and QEMU resumes the
//! guest), its copy of the userfaultfd. What stays, and is undone here: a
//! guest stopped in `pre-switchover` (nobody writes there, so QEMU notices
//! nothing) or after a complete save, the userfaultfd's copy inside QEMU, and
//! the migration settings.

use std::sync::Arc;

use hikkoshi_engine::Cancel;
use hikkoshi_userfault::{GiveBackError, close_remote};
use thiserror::Error;

use super::ResumeError;
use super::resume::resume;
use super::undo_record::UndoRecord;
use crate::attach::exclusive_access::{self, ExclusiveAccessError};
use crate::attach::leftovers::is_dirty_log;
use crate::attach::process::{self, ProcessError};
use crate::identity::QemuIdentity;
use crate::identity::namespaces::FindProcessError;
use crate::qmp::monitor;
use crate::qmp::{Client, ConnectError, QmpError};
use crate::settings::{self, Settings};
use crate::stream::close_fd;

/// What became of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOutcome {
    /// QEMU is there, all is undone, and this is the guest's state in QEMU's
    /// words (`running`, or `paused` if its owner paused it).
    Restored {
        /// QEMU's name for it.
        state: String,
    },
    /// QEMU has ended, and everything with it.
    QemuExited,
}

/// Not everything could be undone.
#[derive(Debug, Error)]
pub enum UndoError {
    /// The QMP socket.
    #[error("undoing an interrupted migration: {0}")]
    Connect(#[from] ConnectError),
    /// The process.
    #[error("undoing an interrupted migration: {0}")]
    Process(#[from] ProcessError),
    /// Whether it is there could not be found out.
    #[error("undoing an interrupted migration: {0}")]
    Look(#[from] FindProcessError),
    /// It is not the QEMU that the record is about.
    #[error(
        "undoing an interrupted migration: process {found} listens on the QMP socket now, not the \
         one that was to be moved ({expected}); left alone"
    )]
    AnotherQemu {
        /// The record's.
        expected: u32,
        /// The one there.
        found: u32,
    },
    /// Another engine has the guest.
    #[error("undoing an interrupted migration: {0}; left alone")]
    Occupied(#[from] ExclusiveAccessError),
    /// The guest.
    #[error("undoing an interrupted migration: {0}")]
    Resume(#[from] ResumeError),
    /// The userfaultfd.
    #[error("undoing an interrupted migration: {0}")]
    Userfault(#[from] GiveBackError),
    /// The settings.
    #[error("undoing an interrupted migration: putting QEMU's migration settings back: {0}")]
    Settings(QmpError),
    /// QEMU could not be asked.
    #[error("undoing an interrupted migration: {0}")]
    Qmp(#[from] QmpError),
}

/// Undoes what the record tells of: resumes the guest if we stopped it and it
/// ran, closes the dirty log that was left in QEMU, puts the settings back.
///
/// Can be called again, and when nothing was ever done. A guest that its owner
/// paused stays paused; a migration that is not ours is left alone.
///
/// # Errors
///
/// See [`UndoError`]. As much as possible was undone, the guest's running
/// first.
pub fn undo(identity: &QemuIdentity, record: &UndoRecord) -> Result<UndoOutcome, UndoError> {
    let Some(process) = identity.process()? else {
        return Ok(UndoOutcome::QemuExited);
    };
    // Another engine may have begun anew, with another journal.
    let _lock = match exclusive_access::acquire(&process) {
        Ok(lock) => Some(lock),
        Err(error @ ExclusiveAccessError::Busy { .. }) => return Err(error.into()),
        Err(ExclusiveAccessError::Lock { .. }) if !process.is_alive() => {
            return Ok(UndoOutcome::QemuExited);
        }
        // The guest's running comes first.
        Err(error) => {
            tracing::warn!(%error, "keeping other engines away from the guest");
            None
        }
    };
    let mut client = None;
    let never = Cancel::new();
    let client = match monitor::get_or_connect(
        &mut client,
        &identity.qmp,
        &process,
        monitor::RECONNECT_TIMEOUTS,
        &never,
    ) {
        Ok(client) => client,
        Err(_) if !process.is_alive() => return Ok(UndoOutcome::QemuExited),
        Err(ConnectError::AnotherProcess {
            expected, found, ..
        }) => return Err(UndoError::AnotherQemu { expected, found }),
        Err(error) => return Err(error.into()),
    };
    let guest = undo_stop(client, record);
    let log = close_dirty_logs(&process);
    let settings = undo_settings(client, record);
    let state = guest?;
    log?;
    settings?;
    Ok(UndoOutcome::Restored { state })
}

fn undo_stop(client: &mut Client, record: &UndoRecord) -> Result<String, UndoError> {
    let Some(ran) = record.stopped else {
        return Ok(crate::qmp::migration::run_state(client)?.status);
    };
    // Our settings are made before the guest is stopped and unmade after it
    // runs again. If they are not there, a migration, or a stopped guest, is
    // somebody else's.
    if !settings::are_ours(client)? {
        return Ok(crate::qmp::migration::run_state(client)?.status);
    }
    Ok(resume(client, ran, true)?)
}

fn close_dirty_logs(process: &Arc<hikkoshi_linux::Process>) -> Result<(), UndoError> {
    for leftover in process::userfaults(process)? {
        if is_dirty_log(&leftover) {
            close_remote(process, leftover.number)?;
        }
    }
    Ok(())
}

fn undo_settings(client: &mut Client, record: &UndoRecord) -> Result<(), UndoError> {
    if record.settings == Settings::default() {
        return Ok(());
    }
    // While somebody's migration goes on QEMU refuses this, rightly.
    settings::apply(client, &record.settings).map_err(UndoError::Settings)?;
    close_fd(client).map_err(UndoError::Settings)
}
