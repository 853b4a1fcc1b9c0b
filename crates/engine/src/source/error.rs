//! How a migration can fail at the source, and where the guest is then.

use std::fmt;
use std::io;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_dirty::DirtyError;
use hikkoshi_handover::Outcome;
use thiserror::Error;

use crate::cancelled_by_peer::cancelled_by_peer;
use crate::control_link::unexpected_message;
use crate::guest_error::GuestError;
use crate::source::convergence::NotConverging;
use crate::source::least_bandwidth::BandwidthTooLow;
use crate::source_ended::{SOURCE_ENDED, in_parentheses};
use hikkoshi_link::{HandshakeError, LinkError};
use hikkoshi_memory::GuestRam;

/// A failed migration: its cause, and where the guest is.
#[derive(Debug)]
pub struct MigrateError {
    /// The cause.
    pub cause: SourceFailure,
    /// Where the guest is.
    pub outcome: Outcome,
    /// Failures while the guest was resumed or released.
    pub aftermath: Vec<GuestError>,
}

impl MigrateError {
    pub(crate) fn new(cause: SourceFailure, outcome: Outcome) -> Self {
        Self {
            cause,
            outcome,
            aftermath: Vec::new(),
        }
    }

    /// The error of a migration that failed by `cause` and resumed the guest at
    /// the source, with that result. `ended` says that the guest's process has
    /// ended: then there is nothing to resume later.
    pub(crate) fn after_resume(
        cause: SourceFailure,
        resumed: Result<(), GuestError>,
        ended: bool,
    ) -> Self {
        match resumed {
            Ok(()) => Self::new(cause, Outcome::AtSource),
            Err(error) => Self {
                cause,
                outcome: if ended {
                    Outcome::AtSource
                } else {
                    Outcome::Stopped
                },
                aftermath: vec![error],
            },
        }
    }
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Report::new(&self.cause).fmt(f)?;
        for error in &self.aftermath {
            write!(f, "; then: {}", Report::new(error))?;
        }
        Ok(())
    }
}

/// The message contains those of several errors with their sources, so it has no source.
impl std::error::Error for MigrateError {}

/// A failure at the source.
#[derive(Debug, Error)]
pub enum SourceFailure {
    /// The limit of the bandwidth is too low for this guest.
    #[error("limiting the bandwidth")]
    Bandwidth(#[from] BandwidthTooLow),
    /// A link could not be opened.
    #[error("connecting to the destination at {address}")]
    Connect {
        /// The address as given.
        address: String,
        /// What went wrong.
        #[source]
        cause: HandshakeError,
    },
    /// The destination refused the guest.
    #[error("the destination refuses the guest: {0}")]
    Refused(String),
    /// A link failed.
    #[error("{doing}")]
    Link {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        #[source]
        cause: LinkError,
    },
    /// The destination did not answer the machine that copies a disk.
    #[error(
        "copying the disk {disk}: the destination has answered nothing for {} s, and the guest's \
         writes wait for it: QEMU or the storage hangs there, or the line is broken; when that is \
         mended, move the guest again (if it is only slow: with a larger --stall-timeout)",
        after.as_secs_f64()
    )]
    DiskStalled {
        /// The disk, for people.
        disk: String,
        /// For how long.
        after: Duration,
    },
    /// The links failed, and reconnecting timed out.
    #[error("{}; reconnecting failed", Report::new(lost))]
    ReconnectTimedOut {
        /// Why the links failed.
        lost: Box<SourceFailure>,
        /// Why the last attempt to reconnect failed.
        #[source]
        since: Box<SourceFailure>,
    },
    /// The guest's adapter failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// The guest was paused for the longest allowed time, and its device state was
    /// not saved.
    #[error(
        "the guest was paused for {} s, and could not be handed over in that time",
        limit.as_secs_f64()
    )]
    PausedTooLong {
        /// How long it may be paused.
        limit: Duration,
        /// The operation that timed out.
        #[source]
        why: GuestError,
    },
    /// Guest memory could not be read.
    #[error("reading the guest's memory")]
    Ram(#[from] io::Error),
    /// The dirty log failed.
    #[error(transparent)]
    DirtyLog(#[from] DirtyError),
    /// The destination failed before the handover.
    #[error("the destination failed: {0}")]
    Destination(String),
    /// Cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// Cancelled there, for this reason.
    #[error("{}", cancelled_by_peer("destination", .0))]
    CancelledByDestination(String),
    /// Pre-copy did not converge, and the options say to stop then.
    #[error("{what}; {}", what.advice())]
    NotConverging {
        /// The rounds.
        what: NotConverging,
    },
    /// The destination declined: it never ran the guest and never will.
    #[error("the destination never ran the guest and never will: {0}")]
    Declined(String),
    /// The guest's process has ended at the destination before every page was
    /// there.
    #[error("the guest has ended at the destination: {0}")]
    GuestLost(String),
    /// The guest's process has ended here after *Commit*, and pages that the destination needs were
    /// private to it.
    #[error(
        "the source's virtual machine has ended in post-copy{}, and its private memory ({}) with it: \
         pages that the destination does not have are lost",
        in_parentheses(why.as_deref()), list_blocks(blocks)
    )]
    MemoryLost {
        /// Why it has ended, if that is known.
        why: Option<String>,
        /// The RAM blocks that were private memory.
        blocks: Vec<String>,
        /// Whether the destination has been notified.
        notified: bool,
    },
    /// Another engine was killed before it handed the guest over.
    #[error("the migration was interrupted before the guest was handed over")]
    Interrupted,
    /// The record could not be stored.
    #[error("recording the migration's progress")]
    Journal(#[source] io::Error),
    /// A thread could not be started.
    #[error("starting a thread")]
    Thread(#[source] io::Error),
    /// A thread panicked; the panic hook has reported it.
    #[error("a thread that sends pages panicked; its message is above")]
    ThreadDied,
}

impl SourceFailure {
    /// Adds the operation to a link's failure. A stopped link is a cancellation.
    pub(crate) fn link(doing: &'static str) -> impl FnOnce(LinkError) -> Self {
        move |cause| match cause {
            LinkError::Stopped => Self::Cancelled,
            cause => Self::Link { doing, cause },
        }
    }

    /// The peer sent a message that the protocol does not allow here.
    pub(crate) fn unexpected(doing: &'static str, message: &impl fmt::Debug) -> Self {
        Self::Link {
            doing,
            cause: unexpected_message(message),
        }
    }

    /// Fails if the destination reports that it has every page although `unsent`
    /// pages were not sent. (An engine that resumes a migration does not know of
    /// any.)
    pub(crate) fn check_all_sent(doing: &'static str, unsent: u64) -> Result<(), Self> {
        if unsent == 0 {
            return Ok(());
        }
        let text =
            format!("the destination reports that it has every page, but {unsent} were not sent");
        Err(Self::Link {
            doing,
            cause: LinkError::Protocol(text),
        })
    }

    /// Memory of `ram` was private to a process that has ended (`why`), and is needed at the
    /// destination, which was not notified yet.
    pub(crate) fn memory_lost(ram: &GuestRam, why: Option<String>) -> Self {
        Self::MemoryLost {
            why,
            blocks: ram.lost_blocks(),
            notified: false,
        }
    }

    /// The reason that the destination is sent with *Cancel*: none for a cancellation. If the
    /// guest's process has `ended` here, that is the only reason that matters.
    pub(crate) fn cancel_reason(&self, ended: bool) -> String {
        match self {
            _ if ended => SOURCE_ENDED.to_owned(),
            Self::Cancelled => String::new(),
            cause => Report::new(cause).to_string(),
        }
    }
}

/// RAM blocks, for a message.
pub(crate) fn list_blocks(blocks: &[String]) -> String {
    let names: Vec<_> = blocks.iter().map(|block| format!("\"{block}\"")).collect();
    match &names[..] {
        [] => "RAM blocks".to_owned(),
        [name] => format!("RAM block {name}"),
        names => format!("RAM blocks {}", names.join(", ")),
    }
}
