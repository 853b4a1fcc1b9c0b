//! How the command line names a guest.

use std::fmt;
use std::path::PathBuf;

use hikkoshi_qemu::qmp::MonitorAddress;

use super::migrate::Migrate;

/// A guest, as the command line names it.
#[derive(Debug, Clone)]
pub(crate) enum NamedGuest {
    /// `--qmp`.
    Socket(PathBuf),
    /// `--domain`: a name or a UUID, and the daemon.
    Domain { name: String, uri: String },
}

impl fmt::Display for NamedGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Domain { name, .. } => f.write_str(name),
        }
    }
}

impl NamedGuest {
    /// The guest that the options of `migrate` name, if they do.
    pub(crate) fn source(args: &Migrate) -> Option<Self> {
        let domain = args.domain.domain.clone().map(|name| Self::Domain {
            name,
            uri: args.domain.connect.clone(),
        });
        domain.or_else(|| args.qmp.clone().map(Self::Socket))
    }

    /// The one whose monitor is at this address.
    pub(crate) fn at(address: &MonitorAddress) -> Self {
        match address {
            MonitorAddress::Socket(path) => Self::Socket(path.clone()),
            MonitorAddress::Domain { uri, uuid, .. } => Self::Domain {
                name: uuid.clone(),
                uri: uri.clone(),
            },
        }
    }
}
