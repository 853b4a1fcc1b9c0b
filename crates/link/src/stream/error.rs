//! Errors of a link, and the tick.

use std::io;
use std::time::Duration;

use hikkoshi_wire::{ControlError, DecodeError};
use thiserror::Error;

/// The timeout of one blocking call on a link, after which the thread checks whether it must stop.
pub const TICK: Duration = Duration::from_millis(100);

/// Why a link can no longer be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer closed the connection.
    #[error("the connection is broken: the peer closed it")]
    Closed,
    /// The connection failed.
    #[error("the connection is broken")]
    Io(#[from] io::Error),
    /// The peer sent a malformed frame, or one that is not allowed.
    #[error("the peer sent a malformed message")]
    Malformed(#[from] DecodeError),
    /// The peer sent a malformed control message.
    #[error("the peer sent a malformed message")]
    Control(#[from] ControlError),
    /// A well-formed frame that this link does not expect at this time.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer did not respond within the time limit.
    #[error("the peer does not answer: it hangs, or the connection is broken")]
    TooSlow,
    /// This side was asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl LinkError {
    /// Whether the connection has ended or failed.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}

/// Whether a socket call timed out. (A peer that was silent for too long is reported once, as
/// `TimedOut`.)
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
