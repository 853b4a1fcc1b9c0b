//! Pausing the guest for the switchover.
//!
//! Everything that can be done before is done while the guest runs: the checks, the settings, the
//! undo record, the file for the device state. The guest writes pages all that time, so the engine
//! has it done before it looks for the last ones. Then three commands are sent at once: `stop`,
//! `xen-save-devices-state` and `info ramblock`. QEMU reads commands byte by byte, so it reads the
//! second while it executes the first.
//!
//! While disks are copied only `stop` is sent: QEMU does not release its images before the copies
//! are complete.

use std::time::{Instant, SystemTime};

use error_reporter::Report;
use hikkoshi_account::Side;
use hikkoshi_engine::SourceGuest;
use serde_json::{Value, json};

use super::undo_record::UndoRecord;
use super::{PauseError, QemuSource, SwitchoverStage};
use crate::attach::preflight::{self, MoveInProgress, Refusal};
use crate::device_tree;
use crate::migration_settings;
use crate::qmp::migration_status;
use crate::qmp::pause_mark;
use crate::qmp::reconnect::connected;
use crate::qmp::{QmpError, Submitted, WATCHED_TIMEOUT};
use crate::ram::blocks::{self, RamBlockInfo};
use crate::stream::SaveFile;

/// A save that QEMU executes now, or has executed.
#[derive(Debug)]
pub(super) struct Saving {
    pub(super) file: SaveFile,
    /// The answer to `xen-save-devices-state` is still to come.
    pub(super) save: Submitted,
    /// The answer to `info ramblock`, executed after it.
    pub(super) list: Submitted,
    /// The RAM blocks before the pause.
    pub(super) blocks: Vec<RamBlockInfo>,
}

/// Everything that was prepared for the pause.
#[derive(Debug)]
pub(super) struct PreparedPause {
    file: SaveFile,
    /// The RAM blocks.
    blocks: Vec<RamBlockInfo>,
    /// Whether the guest runs.
    running: bool,
}

impl QemuSource {
    /// Does everything that can be done before the guest is paused. It keeps running.
    pub(super) fn prepare_stop(&mut self) -> Result<(), PauseError> {
        // While disks are copied, QEMU may wait for the destination.
        let cancel = self.copies_cancel();
        connected(&mut self.client)?.set_cancel(cancel);
        let prepared = self.prepare();
        connected(&mut self.client)?.set_cancel(None);
        self.prepared = Some(prepared?);
        Ok(())
    }

    fn prepare(&mut self) -> Result<PreparedPause, PauseError> {
        self.monitor.check_unchanged(None)?;
        self.begin_move()?;
        let client = connected(&mut self.client)?;
        let state = migration_status::run_state(client)?;
        // It may have changed since the move began: the guest may have shut down, or crashed.
        if let Some(advice) = preflight::advice(&state.status) {
            let state = state.status;
            return Err(Refusal::State { state, advice }.into());
        }
        let under_way = MoveInProgress {
            mode: self.mode,
            rounds: self.log.is_some(),
            drained: self.needs_drain,
        };
        preflight::check_again(client, under_way, &self.allowed)?;
        // The destination compared its machine with this one.
        let now = device_tree::read(client)?;
        now.fits(&self.machine).map_err(Refusal::Changed)?;
        // Its owner may have paused or resumed it since we attached.
        self.qemu.description.running = state.running;
        let (before, after) = migration_settings::plan(client, Side::Source)?;
        let undo = UndoRecord {
            settings: before,
            stopped: Some(state.running),
            copies: self.undo.copies,
        };
        self.undo_recorder
            .write(&undo)
            .map_err(PauseError::Record)?;
        self.undo = undo;
        self.stage = SwitchoverStage::Prepared;
        let client = connected(&mut self.client)?;
        let prepared = migration_settings::apply(client, &after).and_then(|()| {
            pause_mark::set(client)?;
            Ok((SaveFile::pass(client)?, blocks::list(client)?))
        });
        let layout = self.qemu.ram.layout();
        let prepared = prepared
            .map_err(PauseError::Qmp)
            .and_then(|(file, blocks)| match blocks::difference(layout, &blocks) {
                // After the devices were compared. What changes from here on is seen after the
                // save.
                Some(difference) => Err(Refusal::MemoryChanged { difference }.into()),
                None => Ok(PreparedPause {
                    file,
                    blocks,
                    running: state.running,
                }),
            });
        if prepared.is_err() {
            self.resume_after_failure();
        }
        prepared
    }

    /// Pauses the guest and lets QEMU save the device state. Returns the instant at which the
    /// guest stopped.
    pub(super) fn stop_guest(&mut self) -> Result<Instant, PauseError> {
        let prepared = match self.take_prepared()? {
            Some(prepared) => prepared,
            None => self.prepare()?,
        };
        self.stage = SwitchoverStage::Pausing;
        let outcome = self.stop_and_save(prepared);
        if outcome.is_err() {
            self.resume_after_failure();
        }
        outcome
    }

    /// What was prepared, if its owner has neither paused nor resumed the guest since then.
    fn take_prepared(&mut self) -> Result<Option<PreparedPause>, PauseError> {
        let Some(prepared) = self.prepared.take() else {
            return Ok(None);
        };
        let state = migration_status::run_state(connected(&mut self.client)?)?;
        if state.running == prepared.running {
            return Ok(Some(prepared));
        }
        self.resume_guest()?;
        Ok(None)
    }

    fn resume_after_failure(&mut self) {
        if self.are_disks_copied() {
            // The engine first ends the connections of the copies, for which QEMU may wait.
            return;
        }
        if let Err(error) = self.resume() {
            tracing::error!(error = %Report::new(&error), "resuming the guest after pausing it failed");
        }
    }

    fn stop_and_save(&mut self, prepared: PreparedPause) -> Result<Instant, PauseError> {
        let asked = Instant::now();
        let paused = if self.are_disks_copied() {
            let paused = match prepared.running {
                true => self.stop_only(asked)?,
                // It counts as paused now.
                false => asked,
            };
            self.prepared = Some(prepared);
            paused
        } else if prepared.running {
            let client = connected(&mut self.client)?;
            client.forget_events();
            let [save, list] = save_commands(&prepared);
            let [stop, save, list] = client.submit([("stop", json!({})), save, list])?;
            client.answer(&stop)?;
            let event = client.take_event("STOP");
            self.saving = Some(prepared.saving(save, list));
            // Without an event its owner has just paused it.
            event.map_or_else(Instant::now, |event| event.at.max(asked))
        } else {
            self.begin_save(prepared)?;
            asked
        };
        self.paused_at = Some(SystemTime::now());
        tracing::debug!(stop = ?paused - asked, answer = ?paused.elapsed(), "the guest is paused");
        Ok(paused)
    }

    /// Pauses the guest. QEMU waits until what is being written to the disks has been written to
    /// both.
    fn stop_only(&mut self, asked: Instant) -> Result<Instant, PauseError> {
        let client = connected(&mut self.client)?;
        client.forget_events();
        client.execute_within("stop", json!({}), WATCHED_TIMEOUT)?;
        let event = client.take_event("STOP");
        Ok(event.map_or_else(Instant::now, |event| event.at.max(asked)))
    }

    /// Lets QEMU save the device state of the paused guest.
    pub(super) fn begin_save(&mut self, prepared: PreparedPause) -> Result<(), QmpError> {
        let client = connected(&mut self.client)?;
        let [save, list] = client.submit(save_commands(&prepared))?;
        self.saving = Some(prepared.saving(save, list));
        Ok(())
    }
}

impl PreparedPause {
    fn saving(self, save: Submitted, list: Submitted) -> Saving {
        Saving {
            file: self.file,
            save,
            list,
            blocks: self.blocks,
        }
    }
}

/// Saves the device state, and lists the RAM blocks.
fn save_commands(prepared: &PreparedPause) -> [(&'static str, Value); 2] {
    // With `live` QEMU releases the guest's images afterwards, and `cont` takes them back. Those of
    // a guest that its owner had paused are released when it was handed over: it does not run until
    // then.
    let arguments = json!({ "filename": prepared.file.path(), "live": prepared.running });
    [
        ("xen-save-devices-state", arguments),
        (
            "human-monitor-command",
            json!({ "command-line": "info ramblock" }),
        ),
    ]
}
