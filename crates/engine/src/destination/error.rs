//! How receiving a guest can fail, and where the guest is then.

use std::fmt;
use std::io;

use hikkoshi_userfault::{CopyError, RangeError, ReadError};
use thiserror::Error;

use crate::destination::install_error::InstallError;

use crate::cancelled_by_peer::cancelled_by_peer;
use crate::control_link::unexpected_message;
use crate::ends_now::ends_now;
use crate::guest::DestinationGuest;
use crate::guest_error::GuestError;
use crate::source_ended::{SOURCE_ENDED, in_parentheses};
use hikkoshi_handover::Outcome;
use hikkoshi_link::{LinkError, WaitEnded};
use hikkoshi_memory::{MemoryError, PresenceError};

/// Why a guest was not received.
#[derive(Debug)]
pub struct ReceiveError {
    /// What went wrong.
    pub cause: DestinationFailure,
    /// Where the guest is, as far as this side knows.
    pub outcome: Outcome,
}

impl ReceiveError {
    /// The guest is at the source.
    pub(crate) fn at_source(cause: DestinationFailure) -> Self {
        Self {
            cause,
            outcome: Outcome::AtSource,
        }
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for ReceiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

/// What can go wrong at the destination.
#[derive(Debug, Error)]
pub enum DestinationFailure {
    /// A link failed.
    #[error("{doing}")]
    Link {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        #[source]
        cause: LinkError,
    },
    /// The guest's adapter failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The guest's memory could not be written or dropped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// No memory to assemble huge pages in.
    #[error(
        "allocating {} MiB to assemble huge pages (free this much memory here; a new migration \
         needs less with fewer background links, --links at the source)",
        bytes >> 20
    )]
    Staging {
        /// How much.
        bytes: u64,
        /// What went wrong.
        #[source]
        cause: io::Error,
    },
    /// A page could not be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// It is unknown which pages are missing.
    #[error(transparent)]
    Presence(#[from] PresenceError),
    /// Faults could not be read.
    #[error(transparent)]
    Faults(#[from] ReadError),
    /// Memory could not be registered for faults.
    #[error(transparent)]
    Register(#[from] RangeError),
    /// The machine's process ended.
    #[error(
        "the destination's virtual machine{} has ended{}, and its part of the guest's memory is \
         lost; its log, or its standard error, may say {}",
        pid.map_or_else(String::new, |pid| format!(" (process {pid})")),
        in_parentheses(why.as_deref()),
        if why.is_some() { "more" } else { "why" }
    )]
    ProcessGone {
        /// Its number, if known.
        pid: Option<u32>,
        /// Why it has ended, if that is known.
        why: Option<String>,
    },
    /// The device state differs from what the source sent.
    #[error("the device state arrived damaged: {0}")]
    DeviceState(String),
    /// Cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// Cancelled at the source, for this reason.
    #[error("{}", cancelled_by_peer("source", .0))]
    CancelledBySource(String),
    /// The source's virtual machine has ended, and the guest with it: it never ran here.
    #[error("{SOURCE_ENDED}")]
    SourceEnded,
    /// Missing pages were lost at the source.
    #[error("the source lost pages that the destination still needs: {0}")]
    SourceMemoryLost(String),
    /// Another engine was killed before it was *ready*.
    #[error("the migration was interrupted before the destination was ready")]
    Interrupted,
    /// The record could not be written.
    #[error("recording the migration's progress")]
    Journal(#[source] io::Error),
    /// No source connected within the time limit.
    #[error("waiting for a guest")]
    NoSource(#[source] WaitEnded),
    /// The listener failed.
    #[error("waiting for a connection")]
    Listen(#[source] io::Error),
    /// The system could not start a thread.
    #[error("starting a thread")]
    Thread(#[source] io::Error),
    /// A thread panicked, and reported it itself.
    #[error(
        "a thread that receives pages or faults has failed; the reason is in the message above"
    )]
    ThreadDied,
}

impl DestinationFailure {
    /// The listener has failed.
    pub(crate) fn listener_failed() -> Self {
        Self::Listen(io::Error::other("the listening socket failed"))
    }

    /// Adds to a link's failure what was being done; a stopped link is a cancellation.
    pub(crate) fn link(doing: &'static str) -> impl FnOnce(LinkError) -> Self {
        move |cause| match cause {
            LinkError::Stopped => Self::Cancelled,
            cause => Self::Link { doing, cause },
        }
    }

    /// Whether a new connection can repair it.
    pub(crate) fn is_about_links(&self) -> bool {
        matches!(
            self,
            Self::Link { .. } | Self::Install(InstallError::Staging(_))
                // The wait for memory was interrupted.
                | Self::Install(InstallError::Copy(CopyError::OutOfMemory { .. }))
        )
    }

    /// Whether the guest cannot run here (any more): its process has ended, or its memory is
    /// corrupted.
    pub(crate) fn is_end_of_guest(&self) -> bool {
        self.is_corruption()
            || matches!(
                self,
                Self::ProcessGone { .. }
                    | Self::Install(InstallError::Copy(CopyError::ProcessGone { .. }))
            )
    }

    /// Whether the guest's memory is corrupted.
    pub(crate) fn is_corruption(&self) -> bool {
        matches!(self, Self::Install(InstallError::Filled { .. }))
    }

    /// Replaces an error that follows from the end of the machine's process by that end.
    pub(crate) fn explained_by(self, guest: &mut dyn DestinationGuest) -> Self {
        let explains = matches!(&self, Self::Guest(error) if error.explains_end());
        let by_machine = matches!(
            self,
            Self::Guest(_)
                | Self::Memory(_)
                | Self::Install(_)
                | Self::Presence(_)
                | Self::Faults(_)
                | Self::Register(_)
                | Self::ProcessGone { pid: None, .. }
        );
        // Such a guest was ended by this side, for the reason in the error.
        if by_machine && !explains && !self.is_corruption() && ends_now(|| guest.has_ended()) {
            return Self::process_ended(guest);
        }
        self
    }

    /// The machine's process has ended.
    pub(crate) fn process_ended(guest: &mut dyn DestinationGuest) -> Self {
        Self::ProcessGone {
            pid: guest.process_memory().map(|(process, _)| process.pid()),
            why: guest.why_ended(),
        }
    }

    /// The machine's process ended: a thread has noticed that, which knows nothing more.
    pub(crate) fn process_gone() -> Self {
        Self::ProcessGone {
            pid: None,
            why: None,
        }
    }

    /// A message that is not allowed at this point.
    pub(crate) fn unexpected(doing: &'static str, message: &impl std::fmt::Debug) -> Self {
        Self::Link {
            doing,
            cause: unexpected_message(message),
        }
    }
}
