//! Receives what the destination sends on the control link.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::{LinkError, TICK};
use hikkoshi_wire::ToSource;

use crate::control_link::REASON_TIMEOUT;
use crate::source::error::SourceFailure;
use crate::source::session::SourceSession;
use crate::source::session::event::{CONTROL, CommitState, SourceSessionEvent};

impl SourceSession {
    /// Waits for the next message; `None` after a tick without one.
    pub(crate) fn receive(
        &mut self,
        doing: &'static str,
        stage: CommitState<'_>,
    ) -> Result<Option<ToSource>, SourceFailure> {
        match self.events.recv_timeout(TICK) {
            Ok(SourceSessionEvent::Message(ToSource::Failed { reason })) => {
                Err(SourceFailure::Destination(reason))
            }
            Ok(SourceSessionEvent::Message(ToSource::Declined { reason }))
                if !matches!(stage, CommitState::AfterCommit) =>
            {
                Err(SourceFailure::Destination(reason))
            }
            Ok(SourceSessionEvent::Message(ToSource::Cancel { reason })) => match stage {
                CommitState::BeforeCommit(_) => Err(SourceFailure::CancelledByDestination(reason)),
                // Sent before the destination received *Commit*, which takes precedence.
                CommitState::AfterCommit => Ok(None),
            },
            Ok(SourceSessionEvent::Message(message)) => Ok(Some(message)),
            Ok(SourceSessionEvent::LinkEnded(link, cause)) => {
                tracing::debug!(link, cause = %Report::new(&cause), "a link ended");
                self.control_ended |= link == CONTROL;
                Err(SourceFailure::Link { doing, cause })
            }
            Ok(SourceSessionEvent::RamFailed(cause)) => Err(SourceFailure::Ram(cause)),
            Ok(SourceSessionEvent::ThreadDied) => Err(SourceFailure::ThreadDied),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(SourceFailure::Link {
                doing,
                cause: LinkError::Closed,
            }),
        }
    }

    /// Waits for a message that `wanted` accepts, for at most `timeout`. Any other
    /// message is a protocol error.
    pub(crate) fn expect(
        &mut self,
        doing: &'static str,
        stage: CommitState<'_>,
        timeout: Duration,
        wanted: impl Fn(&ToSource) -> bool,
    ) -> Result<(), SourceFailure> {
        let begun = Instant::now();
        loop {
            if begun.elapsed() > timeout {
                let cause = LinkError::TooSlow;
                return Err(SourceFailure::Link { doing, cause });
            }
            if let CommitState::BeforeCommit(cancel) = stage
                && cancel.is_cancelled()
            {
                return Err(SourceFailure::Cancelled);
            }
            match self.receive(doing, stage) {
                Ok(Some(message)) if wanted(&message) => return Ok(()),
                Ok(Some(other)) => return Err(SourceFailure::unexpected(doing, &other)),
                Ok(None) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Keeps a link's error, which [`receive_after_commit`](Self::receive_after_commit)
    /// reports next.
    pub(crate) fn defer(&mut self, failure: SourceFailure) {
        if let SourceFailure::Link { cause, .. } = failure {
            self.deferred_error.get_or_insert(cause);
        }
    }

    /// Receives a message after *Commit*. A deferred link error comes
    /// first.
    pub(crate) fn receive_after_commit(
        &mut self,
        doing: &'static str,
    ) -> Result<Option<ToSource>, SourceFailure> {
        match self.deferred_error.take() {
            Some(cause) => Err(SourceFailure::Link { doing, cause }),
            None => self.receive(doing, CommitState::AfterCommit),
        }
    }

    /// Finds the reason behind a link's end. A destination that gives up sends its
    /// reason and closes its links; the end of a link may be seen first.
    pub(crate) fn explain(&mut self, failure: SourceFailure) -> SourceFailure {
        match self.final_message(&failure) {
            Some(ToSource::Failed { reason } | ToSource::Declined { reason }) => {
                SourceFailure::Destination(reason)
            }
            Some(ToSource::Cancel { reason }) => SourceFailure::CancelledByDestination(reason),
            _ => failure,
        }
    }

    /// The destination's final message, if `failure` is the end of a link other
    /// than the control link.
    pub(crate) fn final_message(&mut self, failure: &SourceFailure) -> Option<ToSource> {
        if self.control_ended
            || !matches!(failure, SourceFailure::Link { cause, .. } if cause.is_end())
        {
            return None;
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(remaining) = deadline.checked_duration_since(Instant::now()) {
            match self.events.recv_timeout(remaining) {
                Ok(SourceSessionEvent::Message(ToSource::Cancel { .. })) if self.committed => {}
                Ok(SourceSessionEvent::Message(
                    last @ (ToSource::Failed { .. }
                    | ToSource::Declined { .. }
                    | ToSource::GuestLost { .. }
                    | ToSource::ShutDown
                    | ToSource::Cancel { .. }
                    | ToSource::GuestResumed
                    | ToSource::LeftToDo { .. }
                    | ToSource::Complete { .. }),
                )) => return Some(last),
                Ok(SourceSessionEvent::LinkEnded(CONTROL, _)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        None
    }
}
