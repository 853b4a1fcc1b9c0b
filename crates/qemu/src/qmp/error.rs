//! What can go wrong on a QMP socket.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// No QMP session could be had from a socket.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// There is no such socket, or nobody listens on it, or we may not use it.
    #[error("connecting to the QMP socket {}: {source}{hint}", path.display(), hint = connect_hint(source))]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody listens, but does not turn to us.
    #[error(
        "connecting to the QMP socket {}: no greeting within {} s; QEMU serves one client at a \
         time, so another program probably holds this socket: close it there, or give QEMU a \
         second -qmp socket", path.display(), after.as_secs()
    )]
    NoGreeting {
        /// The socket.
        path: PathBuf,
        /// How long we waited.
        after: Duration,
    },
    /// What came is not QMP.
    #[error(
        "connecting to the QMP socket {}: what listens there is not QMP ({what}); is it QEMU's \
         human monitor, a serial port or the guest agent?", path.display()
    )]
    NotQmp {
        /// The socket.
        path: PathBuf,
        /// What was wrong with the first line.
        what: String,
    },
    /// Another process listens there than the one that is meant.
    #[error(
        "connecting to the QMP socket {}: process {found} listens there now, not QEMU's process \
         {expected}; nothing was asked of it", path.display()
    )]
    AnotherProcess {
        /// The socket.
        path: PathBuf,
        /// Who should.
        expected: u32,
        /// Who does; 0 if the kernel does not say.
        found: u32,
    },
    /// The session broke before it began.
    #[error("opening the QMP session on {}: {source}", path.display())]
    Session {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: QmpError,
    },
}

impl ConnectError {
    /// Whether somebody is there who just does not say anything.
    pub fn is_silent(&self) -> bool {
        match self {
            Self::NoGreeting { .. } => true,
            Self::Session { source, .. } => matches!(source, QmpError::TimedOut { .. }),
            Self::Connect { .. } | Self::NotQmp { .. } | Self::AnotherProcess { .. } => false,
        }
    }
}

fn connect_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "; is QEMU running, with -qmp unix:PATH,server=on,wait=off?"
        }
        io::ErrorKind::PermissionDenied => "; run as QEMU's user or as root",
        _ => "",
    }
}

/// A QMP command that did not get its answer, or got a refusal.
#[derive(Debug, Error)]
pub enum QmpError {
    /// QEMU refused the command, in its own words.
    #[error("QEMU refused the command {command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class, `GenericError` mostly.
        class: String,
        /// QEMU's words.
        description: String,
    },
    /// No answer in time. It may still come, and is dropped then.
    #[error(
        "QEMU did not answer {doing} within {} s; its main loop is stuck, perhaps waiting for a \
         page or for storage", after.as_secs()
    )]
    TimedOut {
        /// What we waited for.
        doing: String,
        /// How long.
        after: Duration,
    },
    /// Somebody asked us to stop waiting.
    #[error("gave up waiting for {doing}, as asked")]
    Cancelled {
        /// What we waited for.
        doing: String,
    },
    /// The socket was closed.
    #[error(
        "QEMU closed the QMP connection while we waited for {doing}; it has probably exited: its \
         log or standard error says why"
    )]
    Closed {
        /// What we waited for.
        doing: String,
    },
    /// The socket failed.
    #[error("talking to QEMU about {doing}: {source}")]
    Socket {
        /// What we were doing.
        doing: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// What came is not what the protocol or the command's schema says.
    #[error("QEMU's answer to {doing} makes no sense: {what}")]
    Unexpected {
        /// What we were doing.
        doing: String,
        /// What is wrong with it.
        what: String,
    },
}

impl QmpError {
    /// Whether QEMU is there and said no (rather than being gone or silent).
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether the connection is gone, and with it most likely QEMU.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Closed { .. } => true,
            Self::Socket { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            ),
            _ => false,
        }
    }

    pub(crate) fn unexpected(doing: &str, what: impl Into<String>) -> Self {
        Self::Unexpected {
            doing: doing.to_owned(),
            what: what.into(),
        }
    }
}
