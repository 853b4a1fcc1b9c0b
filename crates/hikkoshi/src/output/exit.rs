//! How the program ends. The exit statuses are a contract, and so is the JSON object about the end
//! (`docs/json.md`).

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use error_reporter::Report;
use hikkoshi_account::GuestState;
use hikkoshi_handover::Outcome;
use serde::Serialize;

use crate::output::reason::{Holder, Reason};

/// How the program ends: its exit status, and where the guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// 0: it runs at the destination and every page is there.
    Moved,
    /// 0 as well: it was handed over, and has shut down at the destination.
    ShutDown,
    /// 1: it is still at the source.
    AtSource,
    /// 0: a command that moves no guest has done what it was asked to.
    Done,
    /// 1: such a command could not do it.
    Failed,
    /// 2: nothing was tried.
    Usage,
    /// An action of a resource agent: OCF's exit code.
    Ocf(u8),
    /// 3: it was handed over, or may have been, and the migration is not finished. The guest is
    /// paused, or runs at the destination with pages missing. No data is lost.
    Unfinished,
    /// 4: it is lost: it ran at the destination, and before every page had arrived its QEMU there
    /// ended, or the source's QEMU with pages in private memory.
    Lost,
}

impl ExitStatus {
    /// The program's exit status.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Moved | Self::ShutDown | Self::Done => 0,
            Self::AtSource | Self::Failed => 1,
            Self::Usage => 2,
            Self::Ocf(code) => code,
            Self::Unfinished => 3,
            Self::Lost => 4,
        }
    }

    /// The status after a successful migration.
    pub(crate) fn after_move(guest: GuestState) -> Self {
        match guest {
            GuestState::Running | GuestState::Paused | GuestState::Unknown => Self::Moved,
            GuestState::ShutDown => Self::ShutDown,
        }
    }

    /// Who has the guest, if no more than the status is known.
    const fn holder(self) -> Holder {
        match self {
            Self::Moved => Holder::Destination,
            Self::AtSource => Holder::Source,
            Self::Usage | Self::Ocf(_) | Self::Done | Self::Failed => Holder::Unknown,
            Self::Unfinished => Holder::Undecided,
            Self::Lost | Self::ShutDown => Holder::Nobody,
        }
    }
}

impl From<Outcome> for ExitStatus {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::AtSource => Self::AtSource,
            Outcome::Paused | Outcome::AtDestination | Outcome::Stopped | Outcome::Declined => {
                Self::Unfinished
            }
            Outcome::Lost => Self::Lost,
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

/// An end without success.
#[derive(Debug)]
pub(crate) struct Exit {
    status: ExitStatus,
    reason: Reason,
    holder: Holder,
    what: String,
    next: Option<String>,
    resume: Option<String>,
}

impl Exit {
    /// Ends with `status` for `reason`; `why` is for people. Who has the guest follows from the
    /// status, unless [`held_by`](Self::held_by) replaces it.
    pub(crate) fn new(status: ExitStatus, reason: Reason, why: impl fmt::Display) -> Self {
        Self {
            status,
            reason,
            holder: status.holder(),
            what: why.to_string(),
            next: None,
            resume: None,
        }
    }

    /// Ends with `status` for `reason`, because of an error, with the messages of its sources.
    pub(crate) fn caused(status: ExitStatus, reason: Reason, error: &dyn Error) -> Self {
        Self::new(status, reason, Report::new(error))
    }

    /// Adds where the guest is and what to do.
    #[must_use]
    pub(crate) fn with(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Adds another way to do what is to be done.
    #[must_use]
    pub(crate) fn also(mut self, more: &str) -> Self {
        self.next = Some(match self.next {
            Some(next) => format!("{next}. {more}"),
            None => more.to_owned(),
        });
        self
    }

    /// Adds who has the guest.
    #[must_use]
    pub(crate) fn held_by(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// A wrong use while a migration is not finished leaves it unfinished: what could not be used
    /// was needed to resume it.
    #[must_use]
    pub(crate) fn while_unfinished(mut self) -> Self {
        if self.status == ExitStatus::Usage {
            self.status = ExitStatus::Unfinished;
            self.holder = self.status.holder();
        }
        self
    }

    /// Adds the command that resumes or completes the migration on this side.
    #[must_use]
    pub(crate) fn resumed_by(mut self, command: impl Into<String>) -> Self {
        self.resume = Some(command.into());
        self
    }

    /// What went wrong and what to do, for people.
    pub(crate) fn text(&self) -> String {
        match &self.next {
            Some(next) => format!("{}; {next}", self.what),
            None => self.what.clone(),
        }
    }

    /// The command that resumes or completes the migration on this side.
    pub(crate) fn resume(&self) -> Option<&str> {
        self.resume.as_deref()
    }

    /// Where the guest is.
    pub(crate) fn status(&self) -> ExitStatus {
        self.status
    }

    /// Why the program ends.
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }
}

/// The end of a run, for programs.
#[derive(Debug, Serialize)]
pub(crate) struct End<'a> {
    /// The exit status of the program.
    pub exit_status: u8,
    pub reason: Reason,
    /// Who has the guest.
    guest: Holder,
    /// What happened, for people.
    pub message: &'a str,
    /// Where the guest is and what to do, for people.
    pub next: Option<&'a str>,
    /// The command that resumes the migration on this side.
    resume: Option<&'a str>,
}

impl End<'_> {
    /// The guest was moved.
    pub(crate) const MOVED: End<'static> = End {
        exit_status: ExitStatus::Moved.code(),
        reason: Reason::Moved,
        guest: ExitStatus::Moved.holder(),
        message: "the guest is at the destination",
        next: None,
        resume: None,
    };

    /// The guest was handed over, and has shut down since.
    pub(crate) const SHUT_DOWN: End<'static> = End {
        exit_status: ExitStatus::ShutDown.code(),
        reason: Reason::ShutDown,
        guest: ExitStatus::ShutDown.holder(),
        message: "the guest has shut itself down at the destination",
        next: None,
        resume: None,
    };
}

impl<'a> From<&'a Exit> for End<'a> {
    fn from(exit: &'a Exit) -> Self {
        Self {
            exit_status: exit.status.code(),
            reason: exit.reason,
            guest: exit.holder,
            message: &exit.what,
            next: exit.next.as_deref(),
            resume: exit.resume.as_deref(),
        }
    }
}
