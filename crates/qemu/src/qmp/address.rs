//! Where a monitor is.

use std::fmt;
use std::path::PathBuf;

use hikkoshi_wire::text::one_line;
use serde::{Deserialize, Serialize};

/// Where the monitor of a QEMU is, as a journal keeps it and messages name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum MonitorAddress {
    /// QEMU's own QMP socket.
    Socket(PathBuf),
    /// A domain of libvirt, whose daemon lends the monitor.
    Domain {
        /// The daemon.
        uri: String,
        /// The domain's UUID, as libvirt writes it.
        uuid: String,
        /// The domain's name, for people.
        name: String,
    },
}

impl MonitorAddress {
    /// Whether another program owns QEMU. It has started it, and ends it when the guest has moved.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        matches!(self, Self::Domain { .. })
    }

    /// This address for a program with another working directory.
    #[must_use]
    pub fn absolute(&self) -> Self {
        match self {
            Self::Socket(path) => {
                Self::Socket(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
            }
            Self::Domain { .. } => self.clone(),
        }
    }
}

impl fmt::Display for MonitorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "the QMP socket {}", path.display()),
            Self::Domain { uri, name, .. } => {
                write!(f, "the monitor of the domain {} ({uri})", one_line(name))
            }
        }
    }
}
