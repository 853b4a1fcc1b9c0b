//! Resuming the guest at the source.

use std::sync::Arc;

use super::{QemuSource, SwitchoverStage};
use crate::disks::move_lock;
use crate::migration_settings::{self, Settings};
use crate::qmp::ResumeError;
use crate::qmp::migration_status;
use crate::qmp::pause_mark;
use crate::qmp::reconnect::MonitorError;
use crate::qmp::{Client, Monitor};
use crate::stream::remove_save_files;
use error_reporter::Report;

impl QemuSource {
    /// Resumes the guest if we paused it.
    pub(super) fn resume_guest(&mut self) -> Result<(), ResumeError> {
        // Also if it runs already, or stays paused: its owner may resume it.
        self.monitor.taken_back();
        if self.undo.stopped.is_none() {
            return Ok(());
        }
        self.saving = None;
        self.prepared = None;
        // A guest that was to be paused may have been paused by its owner.
        let ran = self.undo.stopped == Some(true) && self.stage != SwitchoverStage::Prepared;
        let saved = matches!(
            self.stage,
            SwitchoverStage::Saved | SwitchoverStage::HandedOver
        );
        if let Some(lock) = self.move_lock.take()
            && let Err(error) = lock.let_run()
        {
            tracing::warn!(%error, "unlocking the guest in QEMU");
        }
        let monitor = Arc::clone(&self.monitor);
        monitor.wait_until_reachable()?;
        let state = resume(self.session()?, &*monitor, ran, saved)?;
        self.stage = SwitchoverStage::NotStarted;
        // `resume` has removed it.
        self.node_may_exist = false;
        tracing::info!(state, "the guest is restored at the source");
        self.undo.stopped = None;
        if let Err(error) = self.restore_settings() {
            // The guest itself is fine. Releasing tries again and reports the error.
            tracing::warn!(error = %Report::new(&error), "restoring QEMU's migration settings");
        }
        self.record_undone();
        Ok(())
    }

    /// Restores the settings, and removes the files for the device state.
    pub(super) fn restore_settings(&mut self) -> Result<(), MonitorError> {
        let settings = self.undo.settings.clone();
        migration_settings::apply(self.session()?, &settings)?;
        self.undo.settings = Settings::default();
        Ok(remove_save_files(self.session()?)?)
    }
}

/// Undoes a failed switchover: resumes the guest if it `ran`. Returns its state.
///
/// `announce`: whether its network addresses may have been announced elsewhere.
pub(super) fn resume(
    client: &mut Client,
    monitor: &dyn Monitor,
    ran: bool,
    announce: bool,
) -> Result<String, ResumeError> {
    let mut state = migration_status::run_state(client)?;
    // Otherwise QEMU might refuse to run it.
    move_lock::remove(client)?;
    if ran && !state.running {
        // Takes the images back, too.
        monitor.resume(client)?;
        state = migration_status::run_state(client)?;
        if !state.running {
            return Err(ResumeError::Stopped {
                state: state.status,
            });
        }
    }
    pause_mark::remove(client)?;
    if ran && announce {
        crate::qmp::announce_self::announce(client);
    }
    Ok(state.status)
}
