//! Notifies the destination that pages which it needs were lost at the source.

use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_link::{LinkError, LinkReader, LinkWriter};
use hikkoshi_wire::{ToDestination, ToSource};

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::session::SourceSession;
use crate::source::session::event::{CONTROL, SourceSessionEvent};

/// How long the destination may take to close its links: closing them here could destroy the
/// message.
const TIMEOUT: Duration = Duration::from_secs(5);

const DOING: &str = "notifying the destination that pages were lost";

fn message(failure: &SourceFailure) -> ToDestination {
    let reason = failure.to_string();
    ToDestination::MemoryLost { reason }
}

/// Notifies a destination that has connected again and has reported what it lacks. Returns the
/// failure.
pub(super) fn notify(
    shared: &MigrationContext,
    (reader, writer): (&mut LinkReader, &mut LinkWriter),
) -> SourceFailure {
    let mut failure = SourceFailure::memory_lost(&shared.ram, None);
    let said = log(writer.control(&message(&failure)));
    if said {
        reader.set_deadline(Some(Instant::now() + TIMEOUT));
        while reader.control::<ToSource>().is_ok() {}
    }
    if let SourceFailure::MemoryLost { notified, .. } = &mut failure {
        *notified = said;
    }
    failure
}

impl SourceSession {
    /// Notifies the destination of this failure, and waits until it has closed its links. Returns
    /// whether it was notified.
    pub(crate) fn notify_memory_lost(&mut self, failure: &SourceFailure) -> bool {
        if self.control_ended {
            return false;
        }
        if let Err(error) = self.send(&message(failure), DOING) {
            tracing::debug!(error = %Report::new(&error), DOING);
            return false;
        }
        let deadline = Instant::now() + TIMEOUT;
        while let Some(rest) = deadline.checked_duration_since(Instant::now()) {
            match self.events.recv_timeout(rest) {
                Ok(SourceSessionEvent::LinkEnded(CONTROL, _)) | Err(_) => break,
                Ok(_) => {}
            }
        }
        true
    }
}

fn log(sent: Result<(), LinkError>) -> bool {
    if let Err(error) = &sent {
        tracing::debug!(error = %Report::new(error), DOING);
    }
    sent.is_ok()
}
