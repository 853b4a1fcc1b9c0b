//! The errors of QMP.

use std::error::Error;
use std::io;
use std::time::Duration;

use thiserror::Error as ThisError;

use super::address::MonitorAddress;

/// No QMP session was opened.
#[derive(Debug, ThisError)]
pub enum ConnectError {
    /// The socket does not exist, no process listens on it, or we may not use it.
    #[error("connecting to {monitor}{hint}", hint = connect_hint(source))]
    Connect {
        /// The monitor.
        monitor: Box<MonitorAddress>,
        /// The error of the system call.
        source: io::Error,
    },
    /// A process listens, but does not greet.
    #[error(
        "connecting to {monitor}: no greeting within {} s; {}", after.as_secs(), silence(monitor, *accepted)
    )]
    NoGreeting {
        /// The monitor.
        monitor: Box<MonitorAddress>,
        /// How long we waited.
        after: Duration,
        /// Whether the process has accepted the connection. QEMU accepts one client of a QMP socket
        /// at a time, and greets it at once.
        accepted: bool,
    },
    /// The peer does not use QMP.
    #[error(
        "connecting to {monitor}: this is not a QMP socket ({what}); is it QEMU's \
         human monitor, a serial port or the guest agent?"
    )]
    NotQmp {
        /// The monitor.
        monitor: Box<MonitorAddress>,
        /// What is wrong with the first line.
        what: String,
    },
    /// Another process listens there, not the expected one.
    #[error(
        "connecting to {monitor}: process {found} listens there now, not QEMU's process \
         {expected}; it was left alone"
    )]
    AnotherProcess {
        /// The monitor.
        monitor: Box<MonitorAddress>,
        /// The expected process.
        expected: u32,
        /// The process that listens; 0 if unknown.
        found: u32,
    },
    /// The session was not established.
    #[error("opening the QMP session on {monitor}")]
    Session {
        /// The monitor.
        monitor: Box<MonitorAddress>,
        /// Why.
        source: QmpError,
    },
    /// The program that owns the monitor does not lend it.
    #[error(transparent)]
    Owner(Box<dyn Error + Send + Sync>),
}

impl ConnectError {
    /// Whether a process listens, but does not answer.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Self::NoGreeting { .. } => true,
            Self::Session { source, .. } => matches!(source, QmpError::TimedOut { .. }),
            Self::Connect { .. }
            | Self::NotQmp { .. }
            | Self::AnotherProcess { .. }
            | Self::Owner(_) => false,
        }
    }
}

fn silence(monitor: &MonitorAddress, accepted: bool) -> &'static str {
    match monitor {
        MonitorAddress::Socket(_) if accepted => {
            "its process has accepted the connection, and QMP begins with a greeting: this is \
             probably another socket of QEMU, such as a serial port or the guest agent's"
        }
        MonitorAddress::Socket(_) => {
            "QEMU serves one client at a time, so another program is probably connected to this \
             socket: close that connection, or give QEMU a second -qmp socket"
        }
        MonitorAddress::Domain { .. } => {
            "libvirt has passed on no answer of QEMU: QEMU's main loop is blocked, perhaps waiting for \
             a page or for storage, or libvirt works on another command, or hangs"
        }
    }
}

fn connect_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            " (is QEMU running, with -qmp unix:PATH,server=on,wait=off?)"
        }
        io::ErrorKind::PermissionDenied => " (run as QEMU's user or as root)",
        _ => "",
    }
}

/// A QMP command failed or was not answered.
#[derive(Debug, ThisError)]
pub enum QmpError {
    /// QEMU refused the command.
    #[error("QEMU refused the command {command}: {description}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's error class, `GenericError` mostly.
        class: String,
        /// QEMU's error message.
        description: String,
    },
    /// No answer in time. A late answer is dropped.
    #[error(
        "QEMU did not answer {doing} within {} s; its main loop is blocked, perhaps waiting for a \
         page or for storage", after.as_secs()
    )]
    TimedOut {
        /// What was waited for.
        doing: String,
        /// How long.
        after: Duration,
    },
    /// The wait was cancelled.
    #[error("cancelled while waiting for {doing}")]
    Cancelled {
        /// What was waited for.
        doing: String,
    },
    /// The socket was closed.
    #[error(
        "QEMU closed the QMP connection while hikkoshi waited for {doing}; it has probably exited: \
         its log or standard error says why"
    )]
    Closed {
        /// What was waited for.
        doing: String,
    },
    /// The socket failed.
    #[error("QMP socket, at {doing}")]
    Socket {
        /// The command, or what was waited for.
        doing: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The answer does not follow the protocol or the command's schema.
    #[error("unexpected answer from QEMU to {doing}: {what}")]
    Unexpected {
        /// The command, or what was waited for.
        doing: String,
        /// What is wrong with it.
        what: String,
    },
    /// The program that owns the monitor failed, or says that the guest cannot be moved.
    #[error(transparent)]
    Owner(Box<dyn Error + Send + Sync>),
}

impl QmpError {
    /// Whether QEMU refused the command (and has not exited or stopped answering).
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether this QEMU does not have the command.
    pub(crate) fn is_unknown_command(&self) -> bool {
        matches!(self, Self::Refused { class, .. } if class == "CommandNotFound")
    }

    /// Whether the connection is closed, most likely because QEMU has exited.
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
