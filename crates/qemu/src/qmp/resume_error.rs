//! Why the guest was not resumed at the source.

use thiserror::Error;

use super::{ConnectError, QmpError};

/// The guest was not resumed.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// A QMP command failed.
    #[error(
        "THE GUEST MAY BE PAUSED: resuming it at the source (resume it by hand: QMP command 'cont')"
    )]
    Qmp(#[from] QmpError),
    /// The connection to the monitor failed.
    #[error(
        "THE GUEST MAY BE PAUSED: resuming it at the source (resume it by hand: QMP command 'cont')"
    )]
    Connect(#[from] ConnectError),
    /// The command succeeded, but the guest does not run.
    #[error(
        "THE GUEST IS PAUSED: resuming it at the source: its state is still {state}; resume it by \
         hand (QMP command 'cont')"
    )]
    Stopped {
        /// QEMU's name for the state.
        state: String,
    },
}
