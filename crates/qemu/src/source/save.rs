//! Saving the device state.

use std::io::Write;
use std::time::Instant;

use error_reporter::Report;
use hikkoshi_account::AsynchronousFaults;
use hikkoshi_engine::{CancelFlag, SourceGuest};
use serde_json::json;
use thiserror::Error;

use super::pause::Saving;
use super::{QemuSource, SaveError, SwitchoverStage};
use crate::attach::preflight::{self, Refusal};
use crate::attach::processors::asynchronous_faults::have_flag;
use crate::qmp::pause_mark;
use crate::qmp::reconnect::connected;
use crate::qmp::{ConnectError, QmpError, migration_status};
use crate::ram::blocks::{self, RamBlockInfo};
use crate::stream::{SaveFile, SavedDevices, StreamBlock, remove_save_files, whole};

impl From<&RamBlockInfo> for StreamBlock {
    fn from(block: &RamBlockInfo) -> Self {
        Self {
            name: block.name.clone(),
            used: block.used,
        }
    }
}

/// The images of a moved guest could not be released.
#[derive(Debug, Error)]
#[error(transparent)]
enum ReleaseImagesError {
    Connect(#[from] ConnectError),
    Qmp(#[from] QmpError),
}

impl QemuSource {
    /// Saves the device state into `sink`, as the stream that the destination's QEMU loads. Fails
    /// once `give_up` is set. QEMU may still be saving then: it executes the next command
    /// afterwards.
    pub(super) fn save(
        &mut self,
        sink: &mut dyn Write,
        give_up: &CancelFlag,
    ) -> Result<(), SaveError> {
        connected(&mut self.client)?.set_cancel(Some(give_up.clone()));
        let saved = self.save_with_cancel(sink);
        connected(&mut self.client)?.set_cancel(None);
        saved
    }

    fn save_with_cancel(&mut self, sink: &mut dyn Write) -> Result<(), SaveError> {
        let began = Instant::now();
        let saving = self.saving.take().ok_or(SaveError::NotPaused)?;
        connected(&mut self.client)?.answer(&saving.save)?;
        let answered = began.elapsed();
        // From now on the guest must not run: QEMU has deactivated its images.
        self.keep_paused();
        let Saving {
            file, list, blocks, ..
        } = saving;
        self.unchecked = Some((list, blocks.clone()));
        let state = file.read().map_err(SaveError::Read)?;
        let devices = SavedDevices::parse(&state)?;
        let stream = whole(
            &self.qemu.description.machine,
            &blocks.iter().map(StreamBlock::from).collect::<Vec<_>>(),
            &devices,
        )?;
        sink.write_all(&stream).map_err(SaveError::Sink)?;
        sink.flush().map_err(SaveError::Sink)?;
        tracing::debug!(bytes = stream.len(), ?answered, took = ?began.elapsed(), "the device state is saved");
        self.saved = Some(state);
        self.stage = SwitchoverStage::Saved;
        Ok(())
    }

    /// Checks that the guest did not resize a block right before it was paused, and that it got no
    /// disk that pre-copy would have had to drain. QEMU has executed the command after the save.
    pub(super) fn check_saved(&mut self) -> Result<(), SaveError> {
        let (list, blocks) = self.unchecked.take().ok_or(SaveError::NotPaused)?;
        let answer = connected(&mut self.client)?.answer(&list)?;
        let now = blocks::parse(answer.as_str().unwrap_or_default())
            .map_err(|what| QmpError::unexpected("info ramblock", what))?;
        if now != blocks {
            return Err(SaveError::Resized);
        }
        // The guest is paused, and the destination is loading its devices.
        self.check_paused_since_the_save()?;
        self.monitor.check_unchanged(self.paused_at)?;
        let undrained = self.log.is_some() && !self.needs_drain;
        if undrained && preflight::needs_drain(connected(&mut self.client)?)? {
            return Err(SaveError::DiskAdded);
        }
        Ok(())
    }

    /// Lets QEMU refuse from now on to run the guest.
    fn keep_paused(&self) {
        if let Some(lock) = &self.move_lock
            && let Err(error) = lock.keep_paused()
        {
            tracing::warn!(%error, "locking the guest in QEMU: nothing prevents that it is resumed here");
        }
    }

    /// Checks that the guest was paused, and did not stop by itself right before, and that no other
    /// program has resumed or reset it between its pause and [`keep_paused`](Self::keep_paused).
    fn check_paused_since_the_save(&mut self) -> Result<(), SaveError> {
        let state = migration_status::run_state(connected(&mut self.client)?)?;
        let was_paused_here = self.qemu.description.running;
        if !state.running && (!was_paused_here || state.status == "paused") {
            return Ok(());
        }
        let state = state.status;
        Err(match preflight::advice(&state) {
            Some(advice) => SaveError::Refused(Refusal::State { state, advice }),
            None => SaveError::Resumed { state },
        })
    }

    /// Whether the guest uses asynchronous page faults: known once it is saved.
    pub(super) fn asynchronous_faults(&self) -> AsynchronousFaults {
        let processors = &self.qemu.processors;
        match &*processors.accelerator {
            // Another engine has read them.
            "" => return AsynchronousFaults::Unknown,
            "kvm" => {}
            _ => return AsynchronousFaults::NoKvm,
        }
        if !have_flag(processors) {
            return AsynchronousFaults::Off;
        }
        let saved = self.saved.as_deref();
        let devices = saved.and_then(|saved| SavedDevices::parse(saved).ok());
        match devices.and_then(|devices| devices.asynchronous_faults()) {
            None => AsynchronousFaults::Unknown,
            Some(0) => AsynchronousFaults::Unused,
            Some(_) => AsynchronousFaults::Used,
        }
    }

    /// The guest was handed over. Releases the images, if its owner had paused it. A failure is
    /// logged, and keeps [`quit`](Self::quit) from ending QEMU: the guest is at the destination.
    pub(super) fn finish_save(&mut self) {
        if self.has_ended() {
            return;
        }
        if self.undo.stopped == Some(false)
            && let Err(error) = self.release_images()
        {
            self.holds_images = true;
            tracing::warn!(
                error = %Report::new(&error),
                "the guest is at the destination, but QEMU (process {}) at the source may still \
                 hold its disks: end that process by the signal SIGKILL, not by the QMP command \
                 'quit', which may write to the disks",
                self.pid()
            );
        }
        let removed = self
            .session()
            .map_err(ReleaseImagesError::from)
            .and_then(|client| Ok(remove_save_files(client)?));
        if let Err(error) = removed {
            tracing::warn!(error = %Report::new(&error), "closing the file for the device state in QEMU");
        }
    }

    /// Saves once more, into nothing: with `live` QEMU releases the images afterwards. Another
    /// engine may have done that already.
    fn release_images(&mut self) -> Result<(), ReleaseImagesError> {
        let client = self.session()?;
        if pause_mark::are_disks_released(client)? {
            return Ok(());
        }
        let file = SaveFile::pass(client)?;
        let arguments = json!({ "filename": file.path(), "live": true });
        client.execute("xen-save-devices-state", arguments)?;
        Ok(pause_mark::set_disks_released(client)?)
    }
}
