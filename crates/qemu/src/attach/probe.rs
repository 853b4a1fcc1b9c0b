//! What can be found out about the QEMU behind a QMP socket without taking it up.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::attach::process;
use crate::qmp::migration;
use crate::qmp::{Client, connect};

/// How long QEMU may take to answer. One that waits for a page does not.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Who listens at a QMP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QmpListener {
    /// None: its QEMU has ended.
    None,
    /// The process with this number.
    Process(u32),
    /// A process that cannot be seen from here, or whose queue is full.
    Unknown,
}

impl QmpListener {
    /// Who listens at `qmp` now. Nothing is said there.
    ///
    /// # Errors
    ///
    /// What the system said, where that does not mean that nobody listens.
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
        // The kernel notes who has called `listen`; 0 is a process out of our sight.
        let pid = getsockopt(&stream, PeerCredentials).map(|peer| u32::try_from(peer.pid()));
        Ok(match pid {
            Ok(Ok(pid)) if pid != 0 => Self::Process(pid),
            _ => Self::Unknown,
        })
    }
}

/// The guest of a QEMU, as far as that QEMU says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestState {
    /// The state in QEMU's words, such as `running` or `inmigrate`.
    pub state: String,
    /// Whether its virtual processors run.
    pub running: bool,
    /// Whether somebody has a userfaultfd in it: pages may be missing.
    pub misses_pages: bool,
}

impl GuestState {
    /// Asks the QEMU at `qmp`.
    ///
    /// # Errors
    ///
    /// Why it could not be asked, for a person.
    pub fn query(qmp: &Path) -> Result<Self, String> {
        let mut client = Client::connect(qmp, REPLY_TIMEOUT).map_err(|error| error.to_string())?;
        let state = migration::run_state(&mut client).map_err(|error| error.to_string())?;
        let process = process::find(&client).map_err(|error| error.to_string())?;
        let left = process::userfaults(&process).map_err(|error| error.to_string())?;
        Ok(Self {
            state: state.status,
            running: state.running,
            misses_pages: left
                .iter()
                .any(|leftover| !crate::attach::leftovers::is_dirty_log(leftover)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn who_listens_is_told_from_nobody() {
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
            "it is left"
        );
    }
}
