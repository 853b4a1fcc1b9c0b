//! The errors of a source.

use std::io;
use std::time::Duration;

use hikkoshi_dirty::{DirtyError, StartError, UnsupportedKernel};
use hikkoshi_userfault::{CloseRemoteError, RemoteUserfaultError};
use thiserror::Error;

use crate::attach::preflight::Refusal;
use crate::qmp::monitor::MonitorError;
use crate::qmp::{ConnectError, QmpError};

/// Longest time from `migrate` until the guest is paused. QEMU sends video
/// memory and the like in this time, while the guest still runs.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time from the last byte of the device state until QEMU reports that
/// the migration completed.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// The dirty log was not started. The guest is unchanged.
#[derive(Debug, Error)]
pub(crate) enum StartLogError {
    /// The kernel does not support it.
    #[error("starting the dirty log (--mode postcopy does not need it)")]
    Kernel(#[from] UnsupportedKernel),
    /// Creating the userfaultfd failed.
    #[error("starting the dirty log")]
    Take(#[from] RemoteUserfaultError),
    /// Starting the tracker failed.
    #[error("starting the dirty log")]
    Start(#[from] StartError),
    /// Querying QEMU for its disks failed.
    #[error("starting the dirty log: querying how the guest's disks are opened")]
    Disks(#[from] QmpError),
    /// It is running already.
    #[error("starting the dirty log: it is running already")]
    Twice,
}

/// The guest was not paused for the switchover. It is unchanged.
#[derive(Debug, Error)]
pub(crate) enum PauseError {
    /// A QMP command failed.
    #[error("pausing the guest for the switchover")]
    Qmp(#[from] QmpError),
    /// The guest's state has changed since we attached.
    #[error("pausing the guest for the switchover")]
    Refused(#[from] Refusal),
    /// The socket for the device state failed.
    #[error("pausing the guest for the switchover: opening the socket for the device state")]
    Socket(#[from] io::Error),
    /// The undo record could not be written.
    #[error("pausing the guest for the switchover: writing the undo record")]
    Record(#[source] io::Error),
    /// QEMU's migration ended instead.
    #[error(
        "pausing the guest for the switchover: QEMU's migration ended with the status {status}{}",
        after_colon(error)
    )]
    Ended {
        /// Its status.
        status: String,
        /// QEMU's error message.
        error: Option<String>,
    },
    /// The guest was not paused in time.
    #[error(
        "pausing the guest for the switchover: QEMU did not pause it within {} s",
        SETUP_TIMEOUT.as_secs()
    )]
    TimedOut,
}

/// The device state was not saved completely.
#[derive(Debug, Error)]
pub(crate) enum SaveError {
    /// The guest was not paused before.
    #[error("saving the device state: the guest is not paused for the switchover")]
    NotPaused,
    /// A QMP command failed.
    #[error("saving the device state")]
    Qmp(#[from] QmpError),
    /// Reading from QEMU failed.
    #[error("saving the device state: reading it from QEMU")]
    Read(#[source] io::Error),
    /// Cancelled before its end.
    #[error("saving the device state: cancelled after {bytes} bytes from QEMU")]
    GivenUp {
        /// Bytes read.
        bytes: u64,
    },
    /// Writing to the sink failed.
    #[error("saving the device state: sending it")]
    Sink(#[source] io::Error),
    /// QEMU reports a failure.
    #[error(
        "saving the device state: QEMU's migration ended with the status {status}{}",
        after_colon(error)
    )]
    Failed {
        /// The migration's status.
        status: String,
        /// QEMU's error message.
        error: Option<String>,
    },
    /// QEMU does not report completion.
    #[error(
        "saving the device state: QEMU wrote all of it but did not report completion within {} s",
        COMPLETION_TIMEOUT.as_secs()
    )]
    TimedOut,
}

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

/// Something that was changed in QEMU was not restored. The rest was.
#[derive(Debug, Error)]
pub(crate) enum ReleaseSourceError {
    /// Stopping the dirty log failed.
    #[error("stopping the dirty log")]
    Log(#[from] DirtyError),
    /// Closing the userfaultfd inside QEMU failed.
    #[error(transparent)]
    Userfault(#[from] CloseRemoteError),
    /// Restoring the settings failed.
    #[error("restoring QEMU's migration settings")]
    Settings(#[from] MonitorError),
    /// QEMU did not complete its migration, of a guest that has moved.
    #[error("waiting until QEMU completes its migration")]
    Finish(#[source] QmpError),
    /// Resuming the guest failed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

/// A colon and QEMU's error message, if there is one.
fn after_colon(error: &Option<String>) -> String {
    error
        .as_ref()
        .map_or_else(String::new, |error| format!(": {error}"))
}
