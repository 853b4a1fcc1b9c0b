//! How the source's part in a handover ends.

use hikkoshi_handover::{Outcome, SourceStage};
use hikkoshi_wire::ToDestination;

use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover::{HandoverDriver, HandoverResult};
use crate::source::kept_notice;

impl HandoverDriver<'_> {
    pub(crate) fn end(
        &mut self,
        cause: Option<SourceFailure>,
        result: &mut HandoverResult,
    ) -> Result<HandoverResult, MigrateError> {
        if self.machine.stage() != SourceStage::Done {
            let cause = cause.unwrap_or(SourceFailure::Interrupted);
            return Err(self.resume_at_source(cause));
        }
        if let Some(mut active) = self.active.take() {
            // Both sides say goodbye before either closes: a closing socket can
            // overtake the last message on it. That the destination has
            // everything is known already, so a failure here costs nothing.
            let goodbye = active
                .session
                .send(&ToDestination::Goodbye, "ending the migration");
            if let Err(error) = goodbye {
                tracing::debug!(%error, "no goodbye");
            }
            active.end();
        }
        Ok(std::mem::take(result))
    }

    /// Ends a hand-over that cannot go on in this engine.
    pub(crate) fn give_up(&mut self, cause: SourceFailure) -> MigrateError {
        if self.machine.stage() == SourceStage::Owned {
            return self.resume_at_source(cause);
        }
        if let Some(active) = self.active.take() {
            active.end();
        }
        self.interrupted(cause)
    }

    /// The guest has ended where it ran: there is nothing to go on with.
    pub(crate) fn guest_lost(&mut self, reason: String) -> MigrateError {
        if let Some(active) = self.active.take() {
            active.end();
        }
        MigrateError::new(SourceFailure::GuestLost(reason), Outcome::Lost)
    }

    /// The guest is the source's still, or again: it runs on.
    fn resume_at_source(&mut self, cause: SourceFailure) -> MigrateError {
        let resumed = self.guest.resume();
        if let Some(mut active) = self.active.take() {
            active
                .session
                .cancel(cause.cancel_reason(self.guest.has_ended()));
            active.end();
        } else {
            // Another engine has called it off, or the guard has.
            kept_notice::send(
                self.remote,
                self.machine.record().id,
                &*self.shared.observer,
            );
        }
        MigrateError::after_resume(cause, resumed, self.guest.has_ended())
    }

    /// Leaves everything as it is, to be taken up again.
    pub(crate) fn interrupted(&self, cause: SourceFailure) -> MigrateError {
        let outcome = match self.machine.stage() {
            SourceStage::Owned => Outcome::AtSource,
            SourceStage::Committed => Outcome::Paused,
            SourceStage::HandedOver | SourceStage::Done => Outcome::AtDestination,
        };
        MigrateError::new(cause, outcome)
    }
}
