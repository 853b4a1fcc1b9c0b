//! Frames on a stream: what a link's reading and writing end have in common.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hikkoshi_wire::{ControlError, DecodeError, Limits};
use thiserror::Error;

use crate::{LinkReader, LinkWriter, Stream};
use hikkoshi_linux::Cancel;

/// How long a blocking call on a link lasts before the thread looks whether
/// it should stop.
pub const TICK: Duration = Duration::from_millis(100);

/// Why a link can no longer be used.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer ended the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer sent what is not a frame, or one that is not allowed.
    #[error("the peer sent a malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// The peer sent a control message that cannot be read.
    #[error("the peer sent a malformed message: {0}")]
    Control(#[from] ControlError),
    /// A well-formed frame of the wrong kind for this link at this time.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// The peer did not say in time what it had to say.
    #[error("the peer takes too long to answer")]
    TooSlow,
    /// This side was asked to stop.
    #[error("interrupted")]
    Stopped,
}

impl LinkError {
    /// Whether the link has ended, for whatever reason the peer had.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}

/// The two ends of one link.
///
/// # Errors
/// When the socket's time-out cannot be set.
pub fn split(
    stream: &Arc<Stream>,
    limits: Limits,
    stop: &Cancel,
) -> io::Result<(LinkReader, LinkWriter)> {
    Ok((
        LinkReader::new(Arc::clone(stream), limits, stop.clone())?,
        LinkWriter::new(Arc::clone(stream), stop.clone())?,
    ))
}

/// Whether a call on a socket ended because its time-out did. (A peer that was
/// silent for too long is `TimedOut`, and said once.)
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}
