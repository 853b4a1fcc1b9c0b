//! An event for the state machine, and its cause.

use hikkoshi_handover::SourceEvent;

use crate::source::error::SourceFailure;

/// What the source does after the handover, in errors.
pub(crate) const DOING: &str = "sending pages to the running guest";

/// An event, and its cause if it is a failure.
#[derive(Debug)]
pub(crate) struct EventWithCause {
    pub(crate) event: SourceEvent,
    pub(crate) cause: Option<SourceFailure>,
}

impl From<SourceEvent> for EventWithCause {
    fn from(event: SourceEvent) -> Self {
        Self { event, cause: None }
    }
}

impl EventWithCause {
    /// An event that `cause` led to.
    pub(crate) fn with_cause(event: SourceEvent, cause: SourceFailure) -> Self {
        Self {
            event,
            cause: Some(cause),
        }
    }
}
