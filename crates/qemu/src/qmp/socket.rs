//! QEMU's own QMP socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::listener::QmpListener;
use super::{Client, ConnectError, Monitor, MonitorAddress};

/// The monitor of a QEMU whose QMP socket is for us.
#[derive(Debug)]
pub struct MonitorSocket {
    path: PathBuf,
    address: MonitorAddress,
}

impl MonitorSocket {
    /// The socket at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            address: MonitorAddress::Socket(path.clone()),
            path,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Monitor for MonitorSocket {
    fn address(&self) -> &MonitorAddress {
        &self.address
    }

    fn open(&self, timeout: Duration) -> Result<Client, ConnectError> {
        Client::connect(&self.path, timeout)
    }

    fn listener(&self) -> io::Result<QmpListener> {
        QmpListener::at(&self.path)
    }
}
