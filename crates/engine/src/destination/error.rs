//! How taking a guest in can fail, and where the guest is then.

use std::io;

use hikkoshi_faults::{RangeError, ReadError};
use hikkoshi_pages::PageRange;
use thiserror::Error;

use super::installer::InstallError;
use crate::guest::GuestError;
use crate::link::LinkError;
use crate::source::Outcome;

/// Why a guest was not taken in.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct ReceiveError {
    /// What went wrong.
    pub cause: DestinationFailure,
    /// What became of the guest, as far as this side can tell.
    pub outcome: Outcome,
}

/// What can go wrong at the destination.
#[derive(Debug, Error)]
pub enum DestinationFailure {
    /// A link failed.
    #[error("{doing}: {cause}")]
    Link {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        cause: LinkError,
    },
    /// The guest's adapter failed.
    #[error("{0}")]
    Guest(#[from] GuestError),
    /// Guest memory could not be written.
    #[error(
        "writing {range} of the guest's memory: {cause}; is the RAM file's file system (or the \
         huge-page pool) full?"
    )]
    Ram {
        /// Which pages.
        range: PageRange,
        /// What went wrong.
        cause: io::Error,
    },
    /// Stale pages could not be dropped.
    #[error(
        "dropping {range} of the guest's memory: {0}; post-copy needs a RAM file whose pages can \
         be dropped one by one: tmpfs without huge pages (mount option huge=never), or hugetlbfs",
        cause.as_ref().map_or("they are still there".to_owned(), ToString::to_string)
    )]
    Drop {
        /// Which pages.
        range: PageRange,
        /// What went wrong; nothing, if the system call succeeded and the
        /// pages are still there.
        cause: Option<io::Error>,
    },
    /// No room for putting huge pages together.
    #[error(
        "setting aside {} MiB for putting huge pages together: {cause}; fewer background links \
         (--links at the source) take less",
        bytes >> 20
    )]
    Staging {
        /// How much.
        bytes: u64,
        /// What went wrong.
        cause: io::Error,
    },
    /// A page could not be installed.
    #[error("{0}")]
    Install(#[from] InstallError),
    /// Faults could not be read.
    #[error("{0}")]
    Faults(#[from] ReadError),
    /// Faults could not be asked for.
    #[error("{0}")]
    Register(#[from] RangeError),
    /// The machine's process ended.
    #[error("the destination's virtual machine has ended; the guest's memory there went with it")]
    ProcessGone,
    /// The device state is not what the source sent.
    #[error("the device state arrived damaged: {0}")]
    DeviceState(String),
    /// Cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// Cancelled there.
    #[error("called off by the source: {0}")]
    CalledOff(String),
    /// The listener failed.
    #[error("waiting for a connection: {0}")]
    Listen(io::Error),
    /// The system has no room for another thread.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
    /// A thread panicked, and said so itself.
    #[error("a thread that receives pages or faults has failed; it said why before this")]
    ThreadDied,
}

impl DestinationFailure {
    /// Adds to a link's failure what was being done; being stopped is a
    /// cancellation.
    pub(super) fn link(doing: &'static str) -> impl FnOnce(LinkError) -> Self {
        move |cause| match cause {
            LinkError::Stopped => Self::Cancelled,
            cause => Self::Link { doing, cause },
        }
    }

    /// A message that has no business here.
    pub(super) fn unexpected(doing: &'static str, message: &impl std::fmt::Debug) -> Self {
        let text: String = format!("{message:?}").chars().take(200).collect();
        Self::Link {
            doing,
            cause: LinkError::Protocol(format!("unexpected message {text}")),
        }
    }
}
