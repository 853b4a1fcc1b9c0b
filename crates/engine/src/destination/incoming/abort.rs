//! Aborts a migration before *ready*: the guest stays at the source.

use std::time::Instant;

use error_reporter::Report;
use hikkoshi_wire::ToDestination;

use crate::control_link::REASON_TIMEOUT;
use crate::destination::error::{DestinationFailure, ReceiveError};
use crate::destination::incoming::incoming_migration::IncomingMigration;
use crate::destination::last_message::last_message;
use crate::destination::session::{DestinationSessionEvent, LISTENING};
use crate::guest::DestinationGuest;
use hikkoshi_handover::Outcome;

impl IncomingMigration<'_> {
    /// Waits for the reason behind a link's end: a source that cancels sends the reason and closes
    /// its links, and the end of another link may be seen first.
    pub(crate) fn explain(&mut self, failure: DestinationFailure) -> DestinationFailure {
        match &failure {
            DestinationFailure::Link { doing, cause } if *doing != LISTENING && cause.is_end() => {}
            _ => return failure,
        }
        let deadline = Instant::now() + REASON_TIMEOUT;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            match self.session.next_within(left) {
                Some(DestinationSessionEvent::Message(ToDestination::Cancel { reason })) => {
                    return DestinationFailure::CancelledBySource(reason);
                }
                // No further message will arrive.
                Some(DestinationSessionEvent::Failed(DestinationFailure::Link {
                    doing, ..
                })) if doing == LISTENING => {
                    break;
                }
                _ => {}
            }
        }
        failure
    }

    /// Unregisters the guest's memory, so that threads that wait for a page continue: the guest
    /// will never run here.
    pub(crate) fn release_memory(&self) {
        self.end_installing();
        self.postcopy.release_memory();
    }

    /// Ends the migration, and gives back what was taken from the guest's process.
    pub(crate) fn withdraw(
        mut self,
        guest: &mut dyn DestinationGuest,
        cause: DestinationFailure,
    ) -> ReceiveError {
        let cause = match cause {
            // The source closes its links when the copy of a disk fails.
            DestinationFailure::Link { .. } if guest.has_ended() => {
                DestinationFailure::process_ended(guest)
            }
            cause => cause.explained_by(guest),
        };
        self.session.send_last(&last_message(&cause));
        self.release_memory();
        self.session.end(self.receivers);
        self.postcopy.join();
        if let Err(error) = guest.release() {
            self.run
                .control
                .observer
                .notice(&Report::new(&error).to_string());
        }
        ReceiveError {
            cause,
            outcome: Outcome::AtSource,
        }
    }
}
