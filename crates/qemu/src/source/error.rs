//! The errors of a source.

use std::io;

use hikkoshi_dirty::{DirtyError, StartError, UnsupportedKernel};
use hikkoshi_userfault::{CloseRemoteError, RemoteUserfaultError};
use thiserror::Error;

use crate::attach::preflight::Refusal;
use crate::disks::copy_error::EndCopiesError;
use crate::qmp::reconnect::MonitorError;
use crate::qmp::{QmpError, ResumeError};
use crate::stream::StreamError;

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
    /// The guest cannot be moved by rounds.
    #[error("starting the dirty log")]
    Refused(#[source] Refusal),
    /// QEMU was not prepared for the move.
    #[error("preparing QEMU for the move")]
    Move(#[source] QmpError),
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
    /// The undo record could not be written.
    #[error("pausing the guest for the switchover: writing the undo record")]
    Record(#[source] io::Error),
    /// The guest's owner has paused or resumed it since the pause was prepared, and that could not
    /// be undone.
    #[error("pausing the guest for the switchover")]
    Undo(#[from] ResumeError),
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
    /// QEMU did not write what it should.
    #[error("saving the device state")]
    Stream(#[from] StreamError),
    /// A RAM block has another length than before the pause.
    #[error(
        "saving the device state: the guest has resized a part of its memory (its firmware tables, \
         usually) right before it was paused; try again"
    )]
    Resized,
    /// The guest has got a disk whose reads the dirty log does not report.
    #[error(
        "saving the device state: a disk that reads directly into the guest's memory was added \
         right before the guest was paused; try again"
    )]
    DiskAdded,
    /// The guest stopped by itself right before it was paused.
    #[error("saving the device state")]
    Refused(#[source] Refusal),
    /// Another program has resumed or reset the guest.
    #[error(
        "saving the device state: another program has resumed or reset the guest after it was paused \
         for the move (its state is {state}); try again"
    )]
    Resumed {
        /// QEMU's name for the state.
        state: String,
    },
    /// Writing to the sink failed.
    #[error("saving the device state: sending it")]
    Sink(#[source] io::Error),
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
    /// The block node was not removed.
    #[error(
        "letting QEMU migrate the guest again (by hand: QMP command 'blockdev-del', node-name \
         {node})", node = crate::disks::move_lock::NODE
    )]
    MoveLock(#[source] MonitorError),
    /// What copies the guest's disks was not removed.
    #[error(
        "removing the copies of the guest's disks from QEMU (the next 'hikkoshi migrate' removes \
         them; by hand: QMP command 'stop', then \
         'block-job-cancel' with force for everything called hikkoshi-disk-*, 'blockdev-del' when \
         those have ended, and 'cont' if the guest ran)"
    )]
    Copies(#[source] EndCopiesError),
    /// Resuming the guest failed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}
