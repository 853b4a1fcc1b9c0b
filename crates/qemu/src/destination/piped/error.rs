//! The errors of a stream through a pipe.

use std::io;

use error_reporter::Report;
use hikkoshi_linux::{InjectError, ReopenError};
use rustix::io::Errno;
use thiserror::Error;

use crate::process::ProcessError;
use crate::stream::StreamError;

impl PipedError {
    /// The error with what QEMU has written, unless it says that already.
    pub(in crate::destination) fn with(self, written: Option<String>) -> Self {
        let said = Report::new(&self).to_string();
        let first = |written: &String| written.chars().take(FIRST).collect::<String>();
        match written {
            Some(written) if !said.contains(&first(&written)) => Self::Written {
                error: Box::new(self),
                written,
            },
            _ => self,
        }
    }

    /// The error without what QEMU has written. `None`: it is without.
    pub(in crate::destination) fn without_written(&self) -> Option<String> {
        match self {
            Self::Written { error, .. } => {
                let whole = || Report::new(&**error).to_string();
                Some(error.without_written().unwrap_or_else(whole))
            }
            // libvirt's reason may have what QEMU wrote.
            Self::Owner { .. } => Some("libvirt could not restore the domain".to_owned()),
            Self::NotEnded(error) => error.without_written(),
            _ => None,
        }
    }

    /// Whether the process has executed another program meanwhile, so that the memory which was
    /// being read is gone (`ESRCH`): a script that executes QEMU.
    pub(super) fn is_of_earlier_program(&self) -> bool {
        let Self::Process(ProcessError::Proc { source, .. }) = self else {
            return false;
        };
        Errno::from_io_error(source) == Some(Errno::SRCH)
    }
}

/// The characters of what QEMU has written that show whether an error has it: libvirt's may.
const FIRST: usize = 60;

/// QEMU did not load its incoming stream.
#[derive(Debug, Error)]
pub enum PipedError {
    /// The machine's owner has given up.
    #[error("{what}")]
    Owner {
        /// The reason.
        what: String,
    },
    /// The machine's owner does not run the guest.
    #[error("{}", .0.what)]
    NotRun(NotRun),
    /// The stream was not ended, so QEMU has not run the guest.
    #[error("{0}; the guest has not run here")]
    NotEnded(Box<PipedError>),
    /// The owner was asked for the other.
    #[error(
        "the guest was {} at the source while it was being moved, and the machine here was made for \
         the other case: move it again",
        if *running { "resumed" } else { "paused" }
    )]
    StateChanged {
        /// Whether the guest runs now.
        running: bool,
    },
    /// QEMU has ended.
    #[error("loading {part}: QEMU has ended (its log at the destination may say more)")]
    Ended {
        /// What was being loaded.
        part: &'static str,
    },
    /// It has written why. The peer is not sent it.
    #[error("{}. QEMU wrote: {written}", Report::new(&**error))]
    Written {
        /// What went wrong.
        error: Box<PipedError>,
        /// What it wrote.
        written: String,
    },
    /// The move was cancelled.
    #[error("loading {part}: cancelled")]
    Cancelled {
        /// What was being loaded.
        part: &'static str,
    },
    /// QEMU takes too long.
    #[error("loading {part}: QEMU does not read it")]
    TimedOut {
        /// What was being loaded.
        part: &'static str,
    },
    /// The pipe failed.
    #[error("writing to the pipe from which QEMU loads the guest")]
    Pipe {
        /// The error of the system call.
        source: io::Error,
    },
    /// QEMU does not have the pipe.
    #[error("QEMU's process {pid} does not read from the pipe {path}")]
    NotOpen {
        /// Its number.
        pid: u32,
        /// The pipe.
        path: String,
    },
    /// QEMU could not open the pipe for writing.
    #[error(transparent)]
    Hold(#[from] ReopenError),
    /// QEMU could not close it.
    #[error("closing the pipe of the incoming stream in QEMU")]
    NotClosed(#[source] InjectError),
    /// It was closed there, and is open nevertheless.
    #[error("QEMU's process {pid} has the pipe of its incoming stream open for writing still")]
    StillOpen {
        /// Its number.
        pid: u32,
    },
    /// The stream is not one of QEMU's.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The process cannot be examined.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// No page of it is in QEMU's memory, although QEMU has read it.
    #[error("the RAM block \"{id}\" is not found in the memory of QEMU's process {pid}")]
    NotFound {
        /// The block.
        id: String,
        /// Its number.
        pid: u32,
    },
    /// A page is in QEMU's memory twice.
    #[error("the RAM block \"{id}\" is mapped more than once by QEMU's process {pid}")]
    Twice {
        /// The block.
        id: String,
        /// Its number.
        pid: u32,
    },
}

/// Why a machine's owner does not run the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRun {
    /// What went wrong, as text.
    pub what: String,
    /// Whether it is certain that the guest has never run: QEMU has refused to run it, or was ended
    /// before.
    pub never_ran: bool,
}
