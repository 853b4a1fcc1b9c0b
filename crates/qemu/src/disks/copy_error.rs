//! Why a disk was not copied, or its copy not removed.

use thiserror::Error;

use super::mirror_status::Failure;
use crate::qmp::{ConnectError, QmpError, ResumeError};

/// A disk was not copied. The source's disks are unchanged.
#[derive(Debug, Error)]
pub(crate) enum CopyError {
    /// A QMP command failed.
    #[error("copying the disk {disk}")]
    Qmp {
        /// The disk.
        disk: String,
        /// Why.
        source: QmpError,
    },
    /// QEMU's jobs could not be listed or ended.
    #[error("copying the guest's disks")]
    Jobs(#[from] QmpError),
    /// The copies of a move before this one were not removed.
    #[error("copying the guest's disks: removing what an earlier move has left of its copies")]
    Earlier(#[from] EndCopiesError),
    /// The job has failed.
    #[error("copying the disk {disk}: QEMU reports: {failure}{advice}", advice = failure.advice())]
    Failed {
        /// The disk.
        disk: String,
        /// What QEMU knows of the reason.
        failure: Failure,
    },
    /// Another program has ended the job.
    #[error(
        "copying the disk {disk}: its block job '{job}' is gone: another program has ended it; move \
         the guest again"
    )]
    Gone {
        /// The disk.
        disk: String,
        /// The job.
        job: String,
    },
    /// The job is not complete.
    #[error(
        "copying the disk {disk}: its block job is '{status}', and not complete: another program has \
         changed it; move the guest again"
    )]
    NotReady {
        /// The disk.
        disk: String,
        /// QEMU's name for its status.
        status: String,
    },
    /// The guest is not paused.
    #[error(
        "completing the copies of the guest's disks: the guest is not paused for the switchover"
    )]
    NotPaused,
    /// A step was left out.
    #[error("copying the guest's disks: there is no disk {number}, or its copy has begun before")]
    NoDisk {
        /// Its number.
        number: usize,
    },
    /// The sockets could not be created.
    #[error("copying the disk {disk}: creating its connection")]
    Socket {
        /// The disk.
        disk: String,
        /// Why.
        source: std::io::Error,
    },
    /// The undo record could not be written.
    #[error("copying the guest's disks: writing the undo record")]
    Record(#[source] std::io::Error),
}

/// The copies were not removed from QEMU, or the guest was not resumed after that.
#[derive(Debug, Error)]
pub enum EndCopiesError {
    /// The connection to the monitor failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A QMP command failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The guest was not resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}
