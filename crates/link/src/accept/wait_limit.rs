//! When a listener stops waiting for the first source.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why the listener stops waiting for a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitEnded {
    /// The time limit has passed.
    #[error("no source has connected within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The process that reads the invitation has closed the pipe, so no source can connect.
    #[error(
        "the process that reads the invitation from standard output has closed the pipe, and no \
         source has connected: keep the pipe open until the source connects"
    )]
    InvitationReaderGone,
    /// The session that has started this process has ended, so no source will connect.
    #[error("the session that started this command has ended, and no source has connected")]
    SessionEnded,
    /// The source that has asked for this receiver has closed the connection by which it did.
    #[error("the source that has asked for this receiver has gone, and has not sent its guest")]
    SourceGone,
    /// The invitation was withdrawn.
    #[error("the invitation was withdrawn")]
    Withdrawn,
}

/// A condition for the end of waiting. It is checked regularly until a source connects.
#[derive(Clone)]
pub struct WaitLimit(Arc<dyn Fn() -> Option<WaitEnded> + Send + Sync>);

impl WaitLimit {
    /// Stops when `ended` returns a reason. It must not block.
    pub fn until(ended: impl Fn() -> Option<WaitEnded> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ended))
    }

    /// The reason to stop, if there is one.
    pub(crate) fn ended(&self) -> Option<WaitEnded> {
        (self.0)()
    }
}

impl Default for WaitLimit {
    fn default() -> Self {
        Self::until(|| None)
    }
}

impl fmt::Debug for WaitLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitLimit")
    }
}
