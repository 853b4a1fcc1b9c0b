//! Restores everything that was changed in QEMU.

use error_reporter::Report;
use hikkoshi_dirty::DirtyLog;

use super::{QemuSource, ReleaseSourceError, SwitchoverStage};
use crate::disks::move_lock;
use crate::migration_settings::Settings;
use crate::qmp::reconnect::MonitorError;

impl QemuSource {
    pub(super) fn release_qemu(&mut self) -> Result<(), ReleaseSourceError> {
        let mut first: Result<(), ReleaseSourceError> = Ok(());
        let mut note = |result: Result<(), ReleaseSourceError>| {
            if let Err(error) = result {
                if first.is_ok() {
                    first = Err(error);
                } else {
                    tracing::warn!(error = %Report::new(&error), "restoring what was changed in QEMU");
                }
            }
        };
        // The guest first, for which they must have ended.
        note(self.remove_copies().map_err(ReleaseSourceError::Copies));
        if matches!(
            self.stage,
            SwitchoverStage::Prepared | SwitchoverStage::Pausing
        ) {
            // It cannot run elsewhere: its device state was never complete.
            note(self.resume_guest().map_err(Into::into));
        }
        if self.stage == SwitchoverStage::Saved {
            self.finish_save();
            self.stage = SwitchoverStage::HandedOver;
        }
        // That of a guest which was handed over stays.
        if self.stage == SwitchoverStage::NotStarted && self.node_may_exist {
            self.move_lock = None;
            let removed = self
                .session()
                .map_err(MonitorError::from)
                .and_then(|client| Ok(move_lock::remove(client)?));
            self.node_may_exist = removed.is_err();
            note(removed.map_err(ReleaseSourceError::MoveLock));
        }
        if let Some(log) = &self.log {
            match log.stop() {
                Ok(()) => self.log = None,
                Err(error) => note(Err(error.into())),
            }
        }
        if let Some(userfault) = &self.userfault {
            match userfault.close_remote() {
                Ok(()) => self.userfault = None,
                Err(error) => note(Err(error.into())),
            }
        }
        if self.undo.settings != Settings::default() {
            let restored = self.restore_settings();
            if restored.is_ok() {
                // Keep `stopped` in the record: the guest may still resume here.
                if let Err(error) = self.undo_recorder.write(&self.undo) {
                    tracing::warn!(error = %Report::new(&error), "writing the undo record after the settings were restored");
                }
            }
            note(restored.map_err(Into::into));
        }
        first
    }
}

impl Drop for QemuSource {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        if let Err(error) = self.release_qemu() {
            tracing::error!(error = %Report::new(&error), "restoring what was changed in QEMU");
        }
    }
}
