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

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_faults::{GiveBackError, close_remote};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::attach::{CONNECT_TIMEOUT, is_dirty_log};
use crate::process::{self, ProcessError};
use crate::qmp::{Client, ConnectError, QmpError};
use crate::settings::{self, Settings};
use crate::source::{ResumeError, close_descriptor, resume};

/// What must be known to undo what was done to a source. Can be written down
/// and passed on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UndoRecord {
    /// QEMU's process.
    pub pid: u32,
    /// When it was started, in ticks since boot: another one may have the same
    /// number by now.
    pub started: u64,
    /// The settings that we changed, as they were.
    pub settings: Settings,
    /// Whether we stopped the guest, or were about to, and if so: whether it
    /// ran then.
    pub stopped: Option<bool>,
}

impl UndoRecord {
    pub(crate) fn new(pid: u32, started: u64) -> Self {
        Self {
            pid,
            started,
            settings: Settings::default(),
            stopped: None,
        }
    }
}

/// Who is told of changes to the record.
#[derive(Default)]
pub(crate) struct Journal(Option<Keep>);

type Keep = Box<dyn FnMut(&UndoRecord) + Send>;

impl Journal {
    pub(crate) fn new(keep: impl FnMut(&UndoRecord) + Send + 'static) -> Self {
        Self(Some(Box::new(keep)))
    }

    pub(crate) fn write(&mut self, record: &UndoRecord) {
        if let Some(keep) = &mut self.0 {
            keep(record);
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Journal").field(&self.0.is_some()).finish()
    }
}

/// What became of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// QEMU is there, all is undone, and this is the guest's state in QEMU's
    /// words (`running`, or `paused` if its owner paused it).
    Source {
        /// QEMU's name for it.
        state: String,
    },
    /// QEMU is gone, and so is everything.
    Gone,
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

/// How long to try to get through to QEMU: it has to notice first that the
/// killed engine's connection has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often to try.
const AGAIN: Duration = Duration::from_millis(50);

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
pub fn undo(qmp: &Path, record: &UndoRecord) -> Result<Undone, UndoError> {
    let Some(mut client) = connect(qmp)? else {
        return Ok(Undone::Gone);
    };
    let process = match process::find(&client) {
        Ok(process) => process,
        Err(ProcessError::Gone { .. }) => return Ok(Undone::Gone),
        Err(error) => return Err(error.into()),
    };
    if process.pid() != record.pid || process::start_time(&process)? != record.started {
        return Err(UndoError::AnotherQemu {
            expected: record.pid,
            found: process.pid(),
        });
    }
    let guest = undo_stop(&mut client, record);
    let log = close_dirty_logs(&process);
    let settings = undo_settings(&mut client, record);
    let state = guest?;
    log?;
    settings?;
    Ok(Undone::Source { state })
}

/// `None` when nobody listens any more.
fn connect(qmp: &Path) -> Result<Option<Client>, ConnectError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Client::connect(qmp, CONNECT_TIMEOUT) {
            Ok(client) => return Ok(Some(client)),
            Err(ConnectError::Connect { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

fn undo_stop(client: &mut Client, record: &UndoRecord) -> Result<String, UndoError> {
    let Some(ran) = record.stopped else {
        return Ok(crate::migration::run_state(client)?.status);
    };
    // Our settings are made before the guest is stopped and unmade after it
    // runs again. If they are not there, a migration, or a stopped guest, is
    // somebody else's.
    if !settings::are_ours(client)? {
        return Ok(crate::migration::run_state(client)?.status);
    }
    Ok(resume(client, ran, true)?)
}

fn close_dirty_logs(process: &Arc<hikkoshi_faults::Process>) -> Result<(), UndoError> {
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
    close_descriptor(client).map_err(UndoError::Settings)
}
