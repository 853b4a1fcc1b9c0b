//! Why a domain is not created.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::description::DescriptionError;
use crate::DomainError;

/// How long libvirt may take to start QEMU.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A domain was not created. Nothing is left of it.
#[derive(Debug, Error)]
pub enum IncomingError {
    /// The source's description is not used.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// libvirt or the domain cannot be used.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// libvirt did not start the domain.
    #[error("creating the domain {name}: {what}")]
    Refused {
        /// The domain.
        name: String,
        /// libvirt's message.
        what: String,
    },
    /// An earlier state of it is kept.
    #[error(
        "creating the domain {name}: it has a managed save image at {uri}, which its next start there \
         would restore, on disks that are newer by then (remove it with 'virsh managedsave-remove \
         {name}')"
    )]
    Saved {
        /// The domain.
        name: String,
        /// The daemon.
        uri: String,
    },
    /// The state of its TPM is not this host's own.
    #[error(
        "creating the domain {name}: the state of its TPM is in {}, which {why}. It moves with the \
         guest into a folder of its own at each host: with the source's, two swtpms would use one \
         state, and libvirt would remove it (keep the folder on a file system of this host, or move \
         the domain with 'virsh migrate')",
        folder.display()
    )]
    TpmState {
        /// The domain.
        name: String,
        /// The folder.
        folder: PathBuf,
        /// Why it is not.
        why: SharedState,
    },
    /// It takes too long.
    #[error("creating the domain {name}: libvirt has not started QEMU within {} s", START_TIMEOUT.as_secs())]
    TimedOut {
        /// The domain.
        name: String,
    },
    /// The move was cancelled meanwhile.
    #[error("creating the domain {name}: cancelled")]
    Cancelled {
        /// The domain.
        name: String,
    },
    /// The pipe from which libvirt restores it failed.
    #[error("writing the pipe {} from which libvirt creates the domain", path.display())]
    Pipe {
        /// The pipe.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Why a folder with the state of a TPM is not this host's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SharedState {
    /// It is on a file system of this type, which several hosts may use.
    FileSystem(String),
    /// It is locked.
    InUse,
    /// That cannot be found out, for this reason.
    Unknown(String),
}

impl fmt::Display for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(kind) => write!(
                f,
                "exists on a file system that several hosts may use ({kind})"
            ),
            Self::InUse => f.write_str("another swtpm uses, perhaps the source's"),
            Self::Unknown(why) => write!(f, "cannot be examined ({why})"),
        }
    }
}

/// A pipe failed.
#[cfg(feature = "libvirt")]
pub(super) fn pipe_error(path: &std::path::Path, source: io::Error) -> IncomingError {
    IncomingError::Pipe {
        path: path.to_owned(),
        source,
    }
}
