//! The monitor of the guest that a command is about.

use std::path::PathBuf;
use std::sync::Arc;

use hikkoshi_libvirt::{Domain, DomainError};
use hikkoshi_qemu::qmp::{Monitor, MonitorAddress, MonitorSocket};

use crate::args::RunOptions;
use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;

/// How the command line names a guest.
#[derive(Debug, Clone)]
pub(crate) enum NamedGuest {
    /// `--qmp`.
    Socket(PathBuf),
    /// `--domain`: a name or a UUID, and the daemon.
    Domain { name: String, uri: String },
}

impl NamedGuest {
    /// The guest that the options name, if they do.
    pub(crate) fn of(run: &RunOptions) -> Option<Self> {
        run.qmp.clone().map(Self::Socket)
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

    /// Its monitor. Looks for a domain, but does not connect to a socket yet.
    ///
    /// # Errors
    /// There is no such domain that runs.
    pub(crate) fn monitor(&self) -> Result<Arc<dyn Monitor>, DomainError> {
        Ok(match self {
            Self::Socket(path) => Arc::new(MonitorSocket::new(path)),
            Self::Domain { name, uri } => Arc::new(Domain::open(uri, name)?),
        })
    }
}

/// The monitor of the guest that the options name.
///
/// # Errors
/// They name none, or no domain that runs.
pub(crate) fn named(run: &RunOptions) -> Result<Arc<dyn Monitor>, Exit> {
    let guest = NamedGuest::of(run).ok_or_else(|| {
        // The command line requires it.
        Exit::new(Status::Usage, Reason::Usage, "--qmp PATH is missing")
    })?;
    guest.monitor().map_err(|error| {
        Exit::caused(Status::AtSource, Reason::NotAttached, &error).with("nothing was changed")
    })
}

/// The monitor at the address in a journal. Does not connect yet.
pub(crate) fn of(address: &MonitorAddress) -> Arc<dyn Monitor> {
    match address {
        MonitorAddress::Socket(path) => Arc::new(MonitorSocket::new(path)),
        MonitorAddress::Domain { uri, uuid, name } => Arc::new(Domain::known(uri, uuid, name)),
    }
}
