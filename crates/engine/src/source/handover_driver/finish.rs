//! How the source's part in a handover ends.

use std::time::Instant;

use error_reporter::Report;
use hikkoshi_handover::{Outcome, SourceStage};
use hikkoshi_wire::ToDestination;

use crate::ends_now::has_ended_after;
use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover_driver::{CompletionReport, HandoverDriver};
use crate::source::network_frames::FrameForwarder;
use crate::source::notify_guest_kept;

impl HandoverDriver<'_> {
    pub(crate) fn finish(
        &mut self,
        cause: Option<SourceFailure>,
        result: &mut CompletionReport,
    ) -> Result<CompletionReport, MigrateError> {
        if self.handover.stage() != SourceStage::Done {
            let cause = cause.unwrap_or(SourceFailure::Interrupted);
            return Err(self.resume_at_source(cause));
        }
        result.left_to_do = self.left_to_do.take();
        if let Some(mut active) = self.active.take() {
            let frames = active.session.frames.take();
            result.frames = frames.and_then(FrameForwarder::finish);
            // Both sides send a last message before either closes: a reset of a
            // closed socket can overtake the last message on it. The destination is
            // known to have every page, so a failure here has no effect.
            let goodbye = active
                .session
                .send(&ToDestination::Goodbye, "ending the migration");
            if let Err(error) = goodbye {
                tracing::debug!(error = %Report::new(&error), "no goodbye");
            }
            active.end();
        }
        Ok(std::mem::take(result))
    }

    /// Ends a handover that cannot continue in this engine.
    pub(crate) fn give_up(&mut self, cause: SourceFailure) -> MigrateError {
        if self.handover.stage() == SourceStage::Owned {
            return self.resume_at_source(cause);
        }
        if self.is_memory_lost(&cause) {
            return self.memory_lost(cause);
        }
        if let Some(active) = self.active.take() {
            active.end();
        }
        self.interrupted(cause)
    }

    /// Ends a handover whose guest was lost at the destination.
    pub(crate) fn guest_lost(&mut self, reason: String) -> MigrateError {
        if let Some(active) = self.active.take() {
            active.end();
        }
        MigrateError::new(SourceFailure::GuestLost(reason), Outcome::Lost)
    }

    /// Resumes the guest, which the source owns, and cancels the migration.
    fn resume_at_source(&mut self, cause: SourceFailure) -> MigrateError {
        let resumed = self.guest.resume();
        let has_ended = has_ended_after(self.guest, &resumed);
        self.shared.steps.end(Instant::now());
        if let Some(mut active) = self.active.take() {
            active.session.cancel(cause.cancel_reason(has_ended));
            active.end();
        } else {
            // Another engine or the guard resumed the guest, without a link.
            notify_guest_kept::send(
                self.remote,
                self.handover.record().id,
                &*self.shared.observer,
            );
        }
        MigrateError::after_resume(cause, resumed, has_ended)
    }

    /// Keeps all state for another engine. Returns the error.
    pub(crate) fn interrupted(&self, cause: SourceFailure) -> MigrateError {
        let outcome = match self.handover.stage() {
            SourceStage::Owned => Outcome::AtSource,
            SourceStage::Committed => Outcome::Paused,
            SourceStage::HandedOver | SourceStage::Done => Outcome::AtDestination,
        };
        MigrateError::new(cause, outcome)
    }
}
