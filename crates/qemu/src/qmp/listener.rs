//! Which process listens on a QMP socket.

use std::io;
use std::path::Path;
use std::time::Instant;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::connect;

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
