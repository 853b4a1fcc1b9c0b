//! Errors.

use hikkoshi_userfault::GiveBackError;
use thiserror::Error;

use super::exclusive_access::ExclusiveAccessError;
use super::preflight::Refusal;
use super::process::ProcessError;
use super::ram::RamError;
use crate::qmp::{ConnectError, QmpError};

/// This QEMU, or its guest, cannot take part in a migration. Nothing in it has
/// been changed.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The QMP socket.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The process behind it.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest cannot be moved.
    #[error("this guest cannot be moved: {0}")]
    Refused(#[from] Refusal),
    /// Its memory cannot be moved.
    #[error("this guest cannot be moved: {0}")]
    Ram(#[from] RamError),
    /// Another engine is at work on it.
    #[error(transparent)]
    Occupied(#[from] ExclusiveAccessError),
    /// QEMU could not be asked what it is.
    #[error("asking QEMU what machine it is: {0}")]
    Describe(#[from] QmpError),
    /// Somebody waits for the guest's pages already.
    #[error(
        "process {pid} has a userfaultfd open already (descriptor {number}, {features}): an earlier \
         post-copy migration into it has not ended, or was killed, and pages may be missing; \
         {advice}"
    )]
    Userfault {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: i32,
        /// What it can do.
        features: String,
        /// What to do.
        advice: &'static str,
    },
    /// A dirty log that a killed run left could not be removed.
    #[error("removing what a killed hikkoshi left in process {pid}: {source}")]
    Leftover {
        /// QEMU's process.
        pid: u32,
        /// Why not.
        source: GiveBackError,
    },
    /// The kernel cannot do post-copy.
    #[error("this host's kernel lacks what a destination needs: {missing}")]
    Kernel {
        /// The features, with the releases that brought them.
        missing: String,
    },
}

impl AttachError {
    /// Whether the guest was seen to be one that can be moved; it is as it was.
    pub fn found_guest(&self) -> bool {
        !matches!(
            self,
            Self::Connect(_)
                | Self::Occupied(_)
                | Self::Refused(Refusal::Qmp(_) | Refusal::TooOld { .. } | Refusal::State { .. })
        )
    }

    /// Whether the guest may have been handed over by an earlier migration.
    pub fn may_be_handed_over(&self) -> bool {
        matches!(self, Self::Refused(Refusal::State { state, .. }) if state == "postmigrate")
    }
}
