//! How the program ends: the exit codes are a contract.

use std::fmt;
use std::process::ExitCode;

use hikkoshi_engine::Outcome;

use crate::say;

/// Where the guest is when the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// 0: it runs at the destination and every page is there.
    Moved,
    /// 1: it still runs at the source.
    AtSource,
    /// 2: nothing was tried.
    Usage,
    /// 3: it is on its way, and nothing of it is lost: it stands still, or runs
    /// at the destination and lacks pages. Or, and then that is said, the
    /// destination's QEMU ended in post-copy, and the guest with it.
    Paused,
}

impl From<Outcome> for Status {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::AtSource => Self::AtSource,
            Outcome::Paused
            | Outcome::AtDestination
            | Outcome::Stopped
            | Outcome::Declined
            | Outcome::Lost => Self::Paused,
        }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(match status {
            Status::Moved => 0,
            Status::AtSource => 1,
            Status::Usage => 2,
            Status::Paused => 3,
        })
    }
}

/// An end that was not hoped for.
#[derive(Debug)]
pub struct Exit {
    status: Status,
    what: String,
    next: Option<String>,
}

impl Exit {
    /// Ends with `status` because of `why`.
    pub fn new(status: Status, why: impl fmt::Display) -> Self {
        Self {
            status,
            what: why.to_string(),
            next: None,
        }
    }

    /// Adds where the guest is and what to do.
    #[must_use]
    pub fn with(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Tells the person.
    pub fn say(self) -> Status {
        say::to_stderr(&format!("hikkoshi: {}", self.what));
        if let Some(next) = self.next {
            say::to_stderr(&format!("hikkoshi: {next}"));
        }
        self.status
    }
}
