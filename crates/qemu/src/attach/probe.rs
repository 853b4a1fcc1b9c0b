//! Queries the QEMU behind a monitor without attaching to it.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use error_reporter::Report;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::attach::preflight::pause_mark;
use crate::attach::process;
use crate::qmp::migration_status::{self, MigrationStatus};
use crate::qmp::{Monitor, connect};

/// The timeout of an answer. A QEMU that waits for a page does not answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The process behind a monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QmpListener {
    /// No process: its QEMU has ended.
    None,
    /// The process with this number.
    Process(u32),
    /// A process that is not visible from here, or whose queue is full.
    Unknown,
}

impl QmpListener {
    /// Finds out which process listens on `qmp` now. Sends nothing there.
    ///
    /// # Errors
    ///
    /// The error of `connect(2)`, unless it means that no process listens.
    pub fn at(qmp: &Path) -> io::Result<Self> {
        let stream = match connect(qmp, Instant::now()) {
            Ok(stream) => stream,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(Self::None),
                    io::ErrorKind::WouldBlock => Ok(Self::Unknown),
                    _ => Err(error),
                };
            }
        };
        // The kernel records the process that called `listen`; 0 is a process that is
        // not visible from here.
        let pid = getsockopt(&stream, PeerCredentials).map(|peer| u32::try_from(peer.pid()));
        Ok(match pid {
            Ok(Ok(pid)) if pid != 0 => Self::Process(pid),
            _ => Self::Unknown,
        })
    }
}

/// The state of a QEMU's guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestState {
    /// QEMU's name for the state, such as `running` or `inmigrate`. For a guest that hikkoshi has
    /// paused for a move, these words.
    pub state: String,
    /// Whether its virtual processors run.
    pub running: bool,
    /// Whether QEMU's process has a userfaultfd for missing pages. One that has loaded no guest has
    /// it for pages that will be missing.
    pub has_userfault: bool,
    /// What QEMU reports of its last migration, or of an incoming guest.
    pub migration: LastMigration,
}

/// The last migration of a QEMU, out of it or into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastMigration {
    /// There was none.
    None,
    /// It is in progress.
    InProgress,
    /// It has ended, with or without success.
    Over,
}

impl GuestState {
    /// Queries the QEMU of this monitor.
    ///
    /// # Errors
    ///
    /// Why the query failed, as text.
    pub fn query(monitor: &dyn Monitor) -> Result<Self, String> {
        let text = |error: &dyn std::error::Error| Report::new(error).to_string();
        let mut client = monitor.open(REPLY_TIMEOUT).map_err(|error| text(&error))?;
        let state = migration_status::run_state(&mut client).map_err(|error| text(&error))?;
        let running = state.running;
        let state = pause_mark::describe(&mut client, state).map_err(|error| text(&error))?;
        let migration = migration_status::query(&mut client).map_err(|error| text(&error))?;
        let process = process::find(&client).map_err(|error| text(&error))?;
        let left = process::userfaults(&process).map_err(|error| text(&error))?;
        Ok(Self {
            state,
            running,
            has_userfault: left
                .iter()
                .any(|stale| !crate::attach::stale_userfaultfds::is_dirty_log(stale)),
            migration: match migration.status {
                MigrationStatus::None => LastMigration::None,
                status if status.is_over() => LastMigration::Over,
                _ => LastMigration::InProgress,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_listening_process_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        assert_eq!(QmpListener::at(&path).unwrap(), QmpListener::None);
        let listener = UnixListener::bind(&path).unwrap();
        let own = QmpListener::Process(std::process::id());
        assert_eq!(QmpListener::at(&path).unwrap(), own);
        drop(listener);
        assert_eq!(
            QmpListener::at(&path).unwrap(),
            QmpListener::None,
            "the socket's file still exists"
        );
    }
}
