//! How an arrival ends that does not come to *ready*: the guest stays at the
//! source.

use std::time::{Duration, Instant};

use hikkoshi_wire::{ToDestination, ToSource};

use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::session::{Event, LISTENING};
use crate::destination::switchover::incoming::IncomingMigration;
use crate::guest::DestinationGuest;
use hikkoshi_handover::Outcome;

/// How long to listen for the reason when a link has failed: a busy host takes
/// its time, and the end of the control link ends the wait.
pub(crate) const REASON_TIMEOUT: Duration = Duration::from_secs(2);

impl IncomingMigration<'_> {
    /// Looks for what is behind a link's end: a source that calls it off says
    /// why and closes its links, and a link's end may be seen first.
    pub(crate) fn explain(&mut self, failure: DestinationFailure) -> DestinationFailure {
        match &failure {
            DestinationFailure::Link { doing, cause } if *doing != LISTENING && cause.is_end() => {}
            _ => return failure,
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.session.next_within(left) {
                Some(Event::Message(ToDestination::Cancel { reason })) => {
                    return DestinationFailure::CalledOff(reason);
                }
                // Nothing more will be said.
                Some(Event::Failed(DestinationFailure::Link { doing, .. }))
                    if doing == LISTENING =>
                {
                    break;
                }
                _ => {}
            }
        }
        failure
    }

    /// Lets go of the guest's memory, so that whatever waits for a page of it
    /// goes on: the guest will never run here.
    pub(crate) fn release_memory(&self) {
        if let Some(postcopy) = &self.postcopy {
            postcopy.release_memory();
        }
    }

    /// Ends it, and gives the guest's process back what was taken from it.
    pub(crate) fn withdraw(
        mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> ReceiveError {
        let cause = cause.explained_by(guest);
        self.session.send_last(&last_message(&cause));
        self.release_memory();
        self.session.end(self.receivers);
        if let Some(postcopy) = &mut self.postcopy {
            postcopy.join();
        }
        if let Err(error) = guest.release() {
            self.watch.observer.notice(&error.to_string());
        }
        ReceiveError {
            cause,
            outcome: Outcome::AtSource,
        }
    }
}

/// The last word to a source whose guest is not taken in.
pub(crate) fn last_message(cause: &DestinationFailure) -> ToSource {
    match cause {
        DestinationFailure::Cancelled => ToSource::Cancel {
            reason: "cancelled by the operator".into(),
        },
        cause => ToSource::Failed {
            reason: cause.to_string(),
        },
    }
}
