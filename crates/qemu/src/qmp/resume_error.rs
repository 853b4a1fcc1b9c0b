//! Why the guest was not resumed at the source.

use thiserror::Error;

use super::{ConnectError, QmpError};

/// How a person resumes a guest that is paused at the source, whose QEMU may have the node of
/// `disks/move_lock.rs`.
pub const RESUME_BY_HAND: &str =
    "QMP commands 'blockdev-del', node-name moved-by-hikkoshi, if QEMU has that node, and 'cont'";

/// The guest was not resumed.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// A QMP command failed.
    #[error(
        "THE GUEST MAY BE PAUSED: resuming it at the source (resume it by hand: {RESUME_BY_HAND})"
    )]
    Qmp(#[from] QmpError),
    /// The connection to the monitor failed.
    #[error(
        "THE GUEST MAY BE PAUSED: resuming it at the source (resume it by hand: {RESUME_BY_HAND})"
    )]
    Connect(#[from] ConnectError),
    /// The command succeeded, but the guest does not run.
    #[error(
        "THE GUEST IS PAUSED: resuming it at the source: its state is still {state}; resume it by \
         hand ({RESUME_BY_HAND})"
    )]
    Stopped {
        /// QEMU's name for the state.
        state: String,
    },
}
