//! How taking a guest in can fail, and where the guest is then.

use std::io;

use hikkoshi_userfault::{CopyError, RangeError, ReadError};
use thiserror::Error;

use crate::destination::postcopy::installer::InstallError;

use crate::guest::{DestinationGuest, GuestError};
use hikkoshi_handover::Outcome;
use hikkoshi_link::{LinkError, WaitEnded};
use hikkoshi_memory::{MemoryError, PresenceError};

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
    /// The guest's memory could not be written or dropped.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// No room for putting huge pages together.
    #[error(
        "setting aside {} MiB for putting huge pages together: {cause}; free as much here; a \
         migration that is only to begin takes less with fewer background links (--links at the \
         source)",
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
    /// It could not be found out what is missing.
    #[error("{0}")]
    Presence(#[from] PresenceError),
    /// Faults could not be read.
    #[error("{0}")]
    Faults(#[from] ReadError),
    /// Faults could not be asked for.
    #[error("{0}")]
    Register(#[from] RangeError),
    /// The machine's process ended; its number, where that is known.
    #[error(
        "the destination's virtual machine{} has ended, and what it had of the guest's memory with \
         it; its log, or its standard error, may say why",
        .0.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    ProcessGone(Option<u32>),
    /// The device state is not what the source sent.
    #[error("the device state arrived damaged: {0}")]
    DeviceState(String),
    /// Cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// Cancelled there.
    #[error("called off by the source: {0}")]
    CalledOff(String),
    /// Another engine was killed before anything was promised.
    #[error("the migration was interrupted before the guest was taken in")]
    Interrupted,
    /// How far things are could not be written down.
    #[error("recording the migration's progress: {0}")]
    Journal(io::Error),
    /// No source has come, and none is waited for any longer.
    #[error("waiting for a guest: {0}")]
    NoSource(WaitEnded),
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
    pub(crate) fn link(doing: &'static str) -> impl FnOnce(LinkError) -> Self {
        move |cause| match cause {
            LinkError::Stopped => Self::Cancelled,
            cause => Self::Link { doing, cause },
        }
    }

    /// Whether a new connection is all that is needed.
    pub(crate) fn is_about_links(&self) -> bool {
        matches!(
            self,
            Self::Link { .. } | Self::Install(InstallError::Staging(_))
                // The wait for memory was interrupted.
                | Self::Install(InstallError::Copy(CopyError::OutOfMemory { .. }))
        )
    }

    /// Whether the guest cannot run here, or not any longer: its process is gone,
    /// or its memory is not what it should be.
    pub(crate) fn is_end_of_guest(&self) -> bool {
        self.is_corruption()
            || matches!(
                self,
                Self::ProcessGone(_)
                    | Self::Install(InstallError::Copy(CopyError::ProcessGone { .. }))
            )
    }

    /// Whether the guest's memory is not what it should be.
    pub(crate) fn is_corruption(&self) -> bool {
        matches!(self, Self::Install(InstallError::Filled { .. }))
    }

    /// The same, with the reason if that is plain to see: whatever is done to the
    /// machine fails when its process has ended.
    pub(crate) fn explained_by(self, guest: &dyn DestinationGuest) -> Self {
        let by_machine = matches!(
            self,
            Self::Guest(_)
                | Self::Memory(_)
                | Self::Install(_)
                | Self::Presence(_)
                | Self::Faults(_)
                | Self::Register(_)
                | Self::ProcessGone(None)
        );
        // Such a guest was ended by this side, and for that reason.
        if by_machine && !self.is_corruption() && guest.has_ended() {
            return Self::gone(guest);
        }
        self
    }

    /// That the machine has ended.
    pub(crate) fn gone(guest: &dyn DestinationGuest) -> Self {
        Self::ProcessGone(guest.memory_place().map(|(process, _)| process.pid()))
    }

    /// A message that has no business here.
    pub(crate) fn unexpected(doing: &'static str, message: &impl std::fmt::Debug) -> Self {
        let text: String = format!("{message:?}").chars().take(200).collect();
        Self::Link {
            doing,
            cause: LinkError::Protocol(format!("unexpected message {text}")),
        }
    }
}
