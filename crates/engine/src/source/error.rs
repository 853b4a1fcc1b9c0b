//! How moving a guest away can fail, and where the guest is then.

use std::fmt;
use std::io;
use std::time::Duration;

use hikkoshi_dirty::DirtyError;
use hikkoshi_handover::Outcome;
use thiserror::Error;

use crate::guest::GuestError;
use hikkoshi_link::{HandshakeError, LinkError};

/// Why a guest was not moved.
#[derive(Debug)]
pub struct MigrateError {
    /// What went wrong.
    pub cause: SourceFailure,
    /// What became of the guest.
    pub outcome: Outcome,
    /// What else went wrong while the guest was brought back, if it did.
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
        self.cause.fmt(f)?;
        for error in &self.aftermath {
            write!(f, "; then: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for MigrateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

/// What can go wrong at the source.
#[derive(Debug, Error)]
pub enum SourceFailure {
    /// No link to the destination.
    #[error("connecting to the destination at {address}: {cause}")]
    Connect {
        /// The address as given.
        address: String,
        /// What went wrong.
        cause: HandshakeError,
    },
    /// The destination will not have this guest.
    #[error("the destination refuses the guest: {0}")]
    Refused(String),
    /// The destination cannot compare processors.
    #[error(
        "offering the guest to the destination: hikkoshi there is too old to compare its \
         processors with the guest's; update it"
    )]
    OlderDestination,
    /// A link failed.
    #[error("{doing}: {cause}")]
    Link {
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        cause: LinkError,
    },
    /// The links failed, and could not be made again in the time that there was.
    #[error("{lost}; reconnecting failed: {since}")]
    LostForGood {
        /// What ended them.
        lost: Box<SourceFailure>,
        /// Why the last attempt came to nothing.
        since: Box<SourceFailure>,
    },
    /// The guest's adapter failed.
    #[error("{0}")]
    Guest(#[from] GuestError),
    /// The guest was paused for as long as it may be, and its device state was
    /// not saved.
    #[error(
        "the guest was paused for {} s, and could not be handed over in that time: {why}",
        limit.as_secs_f64()
    )]
    PausedTooLong {
        /// How long it may be paused.
        limit: Duration,
        /// What was waited for.
        why: GuestError,
    },
    /// Guest memory could not be read.
    #[error("reading the guest's memory: {0}")]
    Ram(#[from] io::Error),
    /// The dirty log failed.
    #[error("{0}")]
    DirtyLog(#[from] DirtyError),
    /// The destination failed before it took the guest over.
    #[error("the destination failed: {0}")]
    Destination(String),
    /// Cancelled here.
    #[error("cancelled")]
    Cancelled,
    /// Cancelled there.
    #[error("cancelled at the destination: {0}")]
    CancelledThere(String),
    /// Pre-copy did not converge, and was told to stop then.
    #[error(
        "pre-copy does not converge: after {rounds} rounds {dirty_mib} MiB are still dirty, and \
         at {mib_per_second} MiB/s they need longer than the downtime allowed; \
         allow more downtime (--max-downtime), or use --mode hybrid"
    )]
    NotConverging {
        /// Rounds done.
        rounds: u32,
        /// What is left, in MiB.
        dirty_mib: u64,
        /// The rate seen, in MiB/s.
        mib_per_second: u64,
    },
    /// The destination has given the guest back, and says so for good.
    #[error("the destination never ran the guest and never will: {0}")]
    Declined(String),
    /// The guest has ended at the destination, with what it had of its memory.
    #[error("the guest has ended at the destination: {0}")]
    GuestLost(String),
    /// Another engine was killed before it had handed the guest over.
    #[error("the migration was interrupted before the guest was handed over")]
    Interrupted,
    /// How far things are could not be written down.
    #[error("recording the migration's progress: {0}")]
    Journal(io::Error),
    /// The system has no room for another thread.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
    /// A thread panicked, and said so itself.
    #[error("a thread that sends pages panicked; its message is above")]
    ThreadDied,
}

impl SourceFailure {
    /// Adds to a link's failure what was being done; being stopped is a
    /// cancellation.
    pub(crate) fn link(doing: &'static str) -> impl FnOnce(LinkError) -> Self {
        move |cause| match cause {
            LinkError::Stopped => Self::Cancelled,
            cause => Self::Link { doing, cause },
        }
    }

    /// The peer sent a message that the protocol does not allow here.
    pub(crate) fn unexpected(doing: &'static str, message: &impl fmt::Debug) -> Self {
        let text: String = format!("{message:?}").chars().take(200).collect();
        Self::Link {
            doing,
            cause: LinkError::Protocol(format!("unexpected message {text}")),
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

    /// The reason that the destination is sent with *Cancel*. If the guest's
    /// process has `ended` here, that is the only reason that matters.
    pub(crate) fn cancel_reason(&self, ended: bool) -> String {
        match self {
            _ if ended => SOURCE_ENDED.to_owned(),
            Self::Cancelled => "cancelled at the source".to_owned(),
            cause => format!("the source failed: {cause}"),
        }
    }
}

/// The reason that a source sends, and a destination reports, when the source's
/// virtual machine has ended.
pub const SOURCE_ENDED: &str = "the source's virtual machine has ended, and the guest with it";
