//! The error of attaching.

use error_reporter::Report;
use hikkoshi_dirty::UnsupportedKernel;
use hikkoshi_engine::Mode;
use hikkoshi_userfault::CloseRemoteError;
use thiserror::Error;

use super::preflight::{Excludes, Refusal};
use crate::process::ProcessError;
use crate::process::exclusive_access::ExclusiveAccessError;
use crate::process::privileges::NoUserfaultfd;
use crate::qmp::pause_mark;
use crate::qmp::{ConnectError, QmpError};
use crate::ram::RamError;

/// This QEMU, or its guest, cannot take part in a migration. It is unchanged.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The QMP session was not opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// QEMU's process cannot be used.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The program that has started QEMU, or its incoming stream, failed.
    #[error(transparent)]
    Owner(Box<dyn std::error::Error + Send + Sync>),
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
        "process {pid} already has a userfaultfd open (descriptor {number}, {features}): {advice}"
    )]
    Userfault {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: i32,
        /// Its features.
        features: String,
        /// What that means, and what to do.
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
    /// The kernel does not have a dirty log.
    #[error(
        "this host's kernel cannot track writes to the guest's memory, as pre-copy rounds need (use --mode postcopy)"
    )]
    DirtyLog(#[source] UnsupportedKernel),
    /// No way to a userfaultfd in QEMU's process is open, which the dirty log is.
    #[error(
        "writes to the guest's memory cannot be tracked, as pre-copy rounds need (use --mode postcopy)"
    )]
    Untrackable(#[from] NoUserfaultfd),
    /// There are several obstacles, at least two.
    #[error("this guest cannot be moved, for {} reasons: {}", .0.len(), numbered(.0))]
    Several(Vec<AttachError>),
}

/// The texts of several obstacles, numbered.
fn numbered(obstacles: &[AttachError]) -> String {
    let texts = obstacles.iter().enumerate();
    let texts = texts.map(|(index, obstacle)| format!("({}) {}", index + 1, obstacle.reason()));
    texts.collect::<Vec<_>>().join("; ")
}

impl AttachError {
    /// Whether an earlier migration may have handed the guest over.
    pub fn may_be_handed_over(&self) -> bool {
        self.all().iter().any(|obstacle| {
            matches!(obstacle, Self::Refused(Refusal::State { state, .. }) if state == "postmigrate" || state == pause_mark::STATE)
        })
    }

    /// Whether an earlier migration has moved the guest away, and needs nothing more of it.
    pub fn has_moved(&self) -> bool {
        self.all().iter().any(|obstacle| {
            matches!(obstacle, Self::Refused(Refusal::State { state, .. }) if state == pause_mark::MOVED_STATE)
        })
    }

    /// Every obstacle: this error, or those that it unites.
    pub fn all(&self) -> &[Self] {
        match self {
            Self::Several(obstacles) => obstacles,
            one => std::slice::from_ref(one),
        }
    }

    /// Which modes it excludes: with several obstacles, what they exclude together.
    pub fn excludes(&self) -> Excludes {
        let mut all = self.all().iter().map(|obstacle| match obstacle {
            Self::Refused(refusal) => refusal.excludes(),
            Self::DirtyLog(_) | Self::Untrackable(_) => Excludes::Rounds,
            _ => Excludes::AllModes,
        });
        let first = all.next().unwrap_or(Excludes::AllModes);
        if all.all(|other| other == first) {
            first
        } else {
            Excludes::AllModes
        }
    }

    /// What is wrong, without saying that the guest cannot be moved.
    pub fn reason(&self) -> String {
        match self {
            Self::Refused(refusal) => Report::new(refusal).to_string(),
            Self::Ram(error) => Report::new(error).to_string(),
            other => Report::new(other).to_string(),
        }
    }

    /// The error of these obstacles.
    pub(crate) fn from_obstacles(mut obstacles: Vec<Self>) -> Self {
        match obstacles.pop() {
            Some(only) if obstacles.is_empty() => only,
            Some(last) => {
                obstacles.push(last);
                Self::Several(obstacles)
            }
            // There is an obstacle wherever something is missing.
            None => Self::Ram(RamError::None),
        }
    }

    /// Whether the user can allow it by [`Overcommit::Allow`](super::Overcommit).
    pub(super) fn is_overcommit(&self) -> bool {
        matches!(self, Self::Ram(RamError::NotEnoughMemory(error)) if error.is_overcommit())
    }

    /// Whether it prevents a move by `mode`; `None`: by any.
    pub(super) fn matters(&self, mode: Option<Mode>) -> bool {
        match mode {
            Some(mode) => self.excludes().includes(mode),
            None => self.excludes() == Excludes::AllModes,
        }
    }
}
