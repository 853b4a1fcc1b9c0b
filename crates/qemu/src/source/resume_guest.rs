//! Resuming the guest at the source.

use super::{QemuSource, ResumeError, SwitchoverStage};
use crate::qmp::migration;
use crate::qmp::monitor::MonitorError;
use crate::settings::{self, Settings};
use crate::stream::close_fd;
use error_reporter::Report;

impl QemuSource {
    /// Resumes the guest if we paused it.
    pub(super) fn resume_guest(&mut self) -> Result<(), ResumeError> {
        if self.undo.stopped.is_none() {
            return Ok(());
        }
        // QEMU may be blocked while writing to us. Dropping the reader ends that.
        self.reader = None;
        let ran = self.undo.stopped == Some(true);
        let saved = self.stage == SwitchoverStage::Saved;
        let state = resume(self.monitor()?, ran, saved)?;
        self.stage = SwitchoverStage::NotStarted;
        tracing::info!(state, "the guest is restored at the source");
        self.stuck_in_postmigrate = state == "postmigrate";
        self.undo.stopped = None;
        if let Err(error) = self.restore_settings() {
            // The guest itself is fine. Releasing tries again and reports the error.
            tracing::warn!(error = %Report::new(&error), "restoring QEMU's migration settings");
        }
        self.record_undone();
        Ok(())
    }

    /// Restores the settings, and closes the descriptor in case `migrate` has not used
    /// it.
    pub(super) fn restore_settings(&mut self) -> Result<(), MonitorError> {
        let settings = self.undo.settings.clone();
        settings::apply(self.monitor()?, &settings)?;
        self.undo.settings = Settings::default();
        Ok(close_fd(self.monitor()?)?)
    }
}

/// Undoes a failed switchover: cancels QEMU's migration and, if the guest `ran`,
/// resumes it. Returns its state.
///
/// `announce`: whether its network addresses may have been announced elsewhere.
pub(super) fn resume(
    client: &mut crate::qmp::Client,
    ran: bool,
    announce: bool,
) -> Result<String, ResumeError> {
    migration::cancel_and_wait(client)?;
    if !ran {
        return Ok(migration::run_state_after_migration(client)?.status);
    }
    let state = migration::resume_after_migration(client)?;
    // In the state "paused" its owner paused it, not we.
    if !state.running && state.status != "paused" {
        return Err(ResumeError::Stopped {
            state: state.status,
        });
    }
    if announce {
        crate::qmp::announce::announce(client);
    }
    Ok(state.status)
}
