//! Errors of a destination.

use std::io;
use std::time::Duration;

use hikkoshi_userfault::{GiveBackError, TakeError};
use thiserror::Error;

use crate::qmp::monitor::MonitorError;
use crate::qmp::{ConnectError, QmpError};

/// How long loading the device state may take. QEMU reads guest memory while
/// it loads; with post-copy each page may have to come over the network first,
/// and QMP is silent meanwhile.
pub(super) const LOAD_TIMEOUT: Duration = Duration::from_secs(300);

/// The machine could not be readied.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// QEMU.
    #[error("readying QEMU to take in a guest: {0}")]
    Qmp(#[from] QmpError),
    /// It has changed since we attached.
    #[error(
        "readying QEMU to take in a guest: its state is {state}, no longer inmigrate; start it afresh"
    )]
    State {
        /// QEMU's name for it.
        state: String,
    },
}

/// The pages that will be missing cannot be caught.
#[derive(Debug, Error)]
pub enum UserfaultError {
    /// No userfaultfd was to be had.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// What the engine before left inside is not there any more.
    #[error(
        "taking over the userfaultfd that the engine before left in QEMU (process {pid}{}): it is \
         not there any more. Since somebody has closed it, pages that had not arrived read as \
         zeros, so what is in this QEMU must not be trusted. If the guest has never run here, end \
         this QEMU and go on with 'hikkoshi receive --resume': then its source takes it back",
        numbered(*number)
    )]
    Lost {
        /// QEMU's process.
        pid: u32,
        /// The descriptor's number in it.
        number: Option<i32>,
    },
    /// The RAM file is on the wrong tmpfs.
    #[error(
        "post-copy drops and fills the pages of a RAM file one by one, but the kernel puts huge \
         pages into the tmpfs of the guest's memory \"{id}\" here ({cause}): mount it with \
         huge=never, or move the guest with --mode precopy"
    )]
    HugePages {
        /// The backend.
        id: String,
        /// What makes it do so.
        cause: String,
    },
    /// Which tmpfs it is on could not be found out.
    #[error("looking how the tmpfs of the guest's memory \"{id}\" is mounted: {source}")]
    Look {
        /// The backend.
        id: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The device state could not be loaded. The guest does not run here.
#[derive(Debug, Error)]
pub enum LoadError {
    /// QEMU.
    #[error("loading the device state: {0}")]
    Qmp(#[from] QmpError),
    /// The socket or thread for it.
    #[error("loading the device state: its socket: {0}")]
    Socket(#[from] io::Error),
    /// QEMU does not like it.
    #[error(
        "loading the device state: QEMU refused it{}; start QEMU here with the same options as at the source",
        words(error)
    )]
    Refused {
        /// QEMU's words, if it said any.
        error: Option<String>,
    },
    /// The machine has not been readied.
    #[error("loading the device state: QEMU has not been readied for it")]
    NotPrepared,
    /// It takes too long.
    #[error("loading the device state: QEMU has not done so within {} s", LOAD_TIMEOUT.as_secs())]
    TimedOut,
    /// The guest runs although it must not yet.
    #[error(
        "loading the device state: the guest began to run by itself; another program has told QEMU \
         so (QMP cont). It has been told to stop"
    )]
    Ran,
}

/// The guest was not made to run.
#[derive(Debug, Error)]
pub enum RunError {
    /// QEMU.
    #[error("resuming the guest at the destination: {0}")]
    Qmp(#[from] QmpError),
    /// QEMU's monitor.
    #[error("resuming the guest at the destination: {0}")]
    Connect(#[from] ConnectError),
    /// QEMU refused, and the guest has never run there.
    #[error(
        "resuming the guest at the destination: {source}. Its QEMU (process {pid}) was ended: it may \
         have taken some of the guest's images, and the source needs them all"
    )]
    Refused {
        /// QEMU's process.
        pid: u32,
        /// What it said.
        source: QmpError,
    },
    /// The same, but it may hold images still.
    #[error(
        "resuming the guest at the destination: {source}. Its QEMU (process {pid}) may have taken \
         some of the guest's images, which the source needs, and could not be ended: {kill}. End it \
         by hand, then go on"
    )]
    NotEnded {
        /// QEMU's process.
        pid: u32,
        /// What it said.
        source: QmpError,
        /// Why it was not ended.
        kill: io::Error,
    },
    /// QEMU did as told, to no avail.
    #[error(
        "resuming the guest at the destination: QEMU was told to, but its state is {state}; resume \
         it by hand (QMP cont), here and not at the source"
    )]
    Stopped {
        /// QEMU's name for it.
        state: String,
    },
    /// There is no guest.
    #[error("resuming the guest at the destination: its device state has not been loaded")]
    NotLoaded,
}

/// QEMU could not be ended.
#[derive(Debug, Error)]
#[error("ending QEMU (process {pid}), whose guest was given up: {source}; end it by hand")]
pub struct KillError {
    pub(super) pid: u32,
    pub(super) source: io::Error,
}

/// Something taken from QEMU could not be given back. The rest was.
#[derive(Debug, Error)]
pub enum ReleaseDestinationError {
    /// The descriptor inside QEMU.
    #[error(transparent)]
    Userfault(#[from] GiveBackError),
    /// The settings.
    #[error("putting QEMU's migration settings back: {0}")]
    Settings(#[from] MonitorError),
}

fn numbered(number: Option<i32>) -> String {
    number.map_or_else(String::new, |number| format!(", descriptor {number}"))
}

fn words(error: &Option<String>) -> String {
    error.as_ref().map_or_else(
        || " and has exited: its log or standard error says why".to_owned(),
        |error| format!(" ({error})"),
    )
}
