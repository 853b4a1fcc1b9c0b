//! The error of attaching.

use hikkoshi_userfault::CloseRemoteError;
use thiserror::Error;

use super::exclusive_access::ExclusiveAccessError;
use super::preflight::{Refusal, pause_mark};
use super::process::ProcessError;
use super::ram::RamError;
use crate::qmp::{ConnectError, QmpError};

/// This QEMU, or its guest, cannot take part in a migration. It is unchanged.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The QMP session was not opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// QEMU's process cannot be used.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The guest cannot be moved.
    #[error("this guest cannot be moved")]
    Refused(#[from] Refusal),
    /// Its memory cannot be moved.
    #[error("this guest cannot be moved")]
    Ram(#[from] RamError),
    /// Another hikkoshi process has this guest.
    #[error(transparent)]
    Occupied(#[from] ExclusiveAccessError),
    /// Querying the machine failed.
    #[error("querying QEMU for its machine")]
    Describe(#[from] QmpError),
    /// QEMU's process already has a userfaultfd.
    #[error(
        "process {pid} already has a userfaultfd open (descriptor {number}, {features}): an earlier \
         post-copy migration into it has not ended, or was killed, and pages may be missing; \
         {advice}"
    )]
    Userfault {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: i32,
        /// Its features.
        features: String,
        /// What to do.
        advice: &'static str,
    },
    /// The dirty log of a killed hikkoshi process was not closed.
    #[error("closing the dirty log that a killed hikkoshi left in process {pid}")]
    Leftover {
        /// QEMU's process.
        pid: u32,
        /// Why not.
        source: CloseRemoteError,
    },
    /// The kernel does not support post-copy.
    #[error("this host's kernel lacks features that a destination needs: {missing}")]
    Kernel {
        /// The features, with the kernel releases that introduced them.
        missing: String,
    },
}

impl AttachError {
    /// Whether a guest was found, which is unchanged.
    pub fn found_guest(&self) -> bool {
        !matches!(
            self,
            Self::Connect(_)
                | Self::Occupied(_)
                | Self::Refused(Refusal::Qmp(_) | Refusal::TooOld { .. } | Refusal::State { .. })
        )
    }

    /// Whether an earlier migration may have handed the guest over.
    pub fn may_be_handed_over(&self) -> bool {
        matches!(self, Self::Refused(Refusal::State { state, .. }) if state == "postmigrate" || state == pause_mark::STATE)
    }
}
