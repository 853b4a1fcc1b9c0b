//! Errors of a source.

use std::io;
use std::time::Duration;

use hikkoshi_dirty::{DirtyError, StartError, UnsupportedKernel};
use hikkoshi_userfault::{GiveBackError, TakeError};
use thiserror::Error;

use crate::attach::preflight::Refusal;
use crate::qmp::monitor::MonitorError;
use crate::qmp::{ConnectError, QmpError};

/// How long QEMU may take from `migrate` to the guest's stop. It sends video
/// memory and the like meanwhile, the guest still runs.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(60);

/// How long QEMU may take from the last byte of the device state to saying
/// that all is well.
pub(super) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// The dirty log could not be started. The guest is as it was.
#[derive(Debug, Error)]
pub enum StartLogError {
    /// The kernel cannot do it.
    #[error(
        "tracking the guest's writes: {0}; post-copy without pre-copy rounds needs no tracking"
    )]
    Kernel(#[from] UnsupportedKernel),
    /// No userfaultfd was to be had.
    #[error("tracking the guest's writes: {0}")]
    Take(#[from] TakeError),
    /// The tracker.
    #[error("tracking the guest's writes: {0}")]
    Start(#[from] StartError),
    /// QEMU could not be asked about its disks.
    #[error("tracking the guest's writes: finding out how its disks are opened: {0}")]
    Disks(#[from] QmpError),
    /// It runs already.
    #[error("tracking the guest's writes: it is being done already")]
    Twice,
}

/// The guest was not stopped for the switchover; it is as it was.
#[derive(Debug, Error)]
pub enum PauseError {
    /// QEMU.
    #[error("stopping the guest for the switchover: {0}")]
    Qmp(#[from] QmpError),
    /// The guest's state has changed since we attached.
    #[error("stopping the guest for the switchover: {0}")]
    Refused(#[from] Refusal),
    /// Something about the socket for the device state.
    #[error("stopping the guest for the switchover: the device state's socket: {0}")]
    Socket(#[from] io::Error),
    /// What there will be to undo could not be written down.
    #[error("stopping the guest for the switchover: writing down how to let it run again: {0}")]
    Record(io::Error),
    /// QEMU's migration came to an end instead.
    #[error(
        "stopping the guest for the switchover: QEMU's migration is {status} instead{}",
        said(error)
    )]
    Ended {
        /// Its status.
        status: String,
        /// QEMU's words.
        error: Option<String>,
    },
    /// It took too long.
    #[error(
        "stopping the guest for the switchover: QEMU has not done so within {} s", SETUP_TIMEOUT.as_secs()
    )]
    TimedOut,
}

/// The device state was not saved whole.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The guest was not stopped for it.
    #[error("saving the device state: the guest has not been stopped for it")]
    NotPaused,
    /// QEMU.
    #[error("saving the device state: {0}")]
    Qmp(#[from] QmpError),
    /// What QEMU wrote could not be read.
    #[error("saving the device state: reading what QEMU writes: {0}")]
    Read(io::Error),
    /// It was to be given up before its end.
    #[error(
        "saving the device state: QEMU has written {bytes} bytes of it so far, and was given no \
         more time"
    )]
    GivenUp {
        /// How much there was.
        bytes: u64,
    },
    /// It could not be passed on.
    #[error("saving the device state: passing it on: {0}")]
    Sink(io::Error),
    /// QEMU says that it failed.
    #[error("saving the device state: QEMU's migration is {status}{}", said(error))]
    Failed {
        /// The migration's status.
        status: String,
        /// QEMU's words.
        error: Option<String>,
    },
    /// QEMU does not say that it went well.
    #[error(
        "saving the device state: QEMU has written it but not said within {} s that all is well",
        COMPLETION_TIMEOUT.as_secs()
    )]
    TimedOut,
}

/// The guest does not run again.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// QEMU.
    #[error(
        "THE GUEST MAY BE STOPPED: resuming it at the source: {0}; resume it by hand (QMP cont)"
    )]
    Qmp(#[from] QmpError),
    /// QEMU's monitor.
    #[error("THE GUEST MAY BE STOPPED: resuming it at the source: {0}")]
    Connect(#[from] ConnectError),
    /// QEMU did as told, to no avail.
    #[error(
        "THE GUEST IS STOPPED: resuming it at the source: its state is {state} still; resume it by \
         hand (QMP cont)"
    )]
    Stopped {
        /// QEMU's name for it.
        state: String,
    },
}

/// Something taken from QEMU could not be given back. The rest was.
#[derive(Debug, Error)]
pub enum ReleaseSourceError {
    /// The dirty log.
    #[error("ending the dirty log: {0}")]
    Log(#[from] DirtyError),
    /// The descriptor inside QEMU.
    #[error(transparent)]
    Userfault(#[from] GiveBackError),
    /// The settings.
    #[error("putting QEMU's migration settings back: {0}")]
    Settings(#[from] MonitorError),
    /// QEMU's save of the device state, of a guest that has moved.
    #[error("letting QEMU end its migration: {0}")]
    Finish(QmpError),
    /// The guest.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

fn said(error: &Option<String>) -> String {
    error
        .as_ref()
        .map_or_else(String::new, |error| format!(": {error}"))
}
