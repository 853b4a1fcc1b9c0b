//! Pausing the guest for the switchover.
//!
//! Everything that can be done before is done while the guest runs: the checks, the settings, the
//! undo record, the file for the device state. The guest writes pages all that time, so the engine
//! has it done before it looks for the last ones. Then three commands are sent at once: `stop`,
//! `xen-save-devices-state` and `info ramblock`. QEMU reads commands byte by byte, so it reads the
//! second while it executes the first.

use std::time::{Instant, SystemTime};

use error_reporter::Report;
use hikkoshi_engine::SourceGuest;
use serde_json::json;

use super::undo_record::UndoRecord;
use super::{PauseError, QemuSource, SwitchoverStage};
use crate::attach::machine;
use crate::attach::preflight::{self, MoveInProgress, Refusal, Side, pause_mark};
use crate::attach::ram::blocks::{self, RamBlockInfo};
use crate::migration_settings;
use crate::qmp::Submitted;
use crate::qmp::migration_status;
use crate::qmp::reconnect::connected;
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
        self.prepared = Some(self.prepare()?);
        Ok(())
    }

    fn prepare(&mut self) -> Result<PreparedPause, PauseError> {
        self.monitor.check_unchanged(None)?;
        self.begin_move()?;
        let client = connected(&mut self.client)?;
        let state = migration_status::run_state(client)?;
        if !matches!(state.status.as_str(), "running" | "paused" | "prelaunch") {
            return Err(Refusal::State {
                state: state.status,
                advice: "it changed during the move; correct it and try again",
            }
            .into());
        }
        let under_way = MoveInProgress {
            mode: self.mode,
            rounds: self.log.is_some(),
            drained: self.needs_drain,
        };
        preflight::check_again(client, under_way, &self.allowed)?;
        // The destination compared its machine with this one.
        let now = machine::read(client)?;
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
        let PreparedPause {
            file,
            blocks,
            running,
        } = match self.take_prepared()? {
            Some(prepared) => prepared,
            None => self.prepare()?,
        };
        self.stage = SwitchoverStage::Pausing;
        let outcome = self.stop_and_save(file, blocks, running);
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
        if let Err(error) = self.resume() {
            tracing::error!(error = %Report::new(&error), "resuming the guest after pausing it failed");
        }
    }

    fn stop_and_save(
        &mut self,
        file: SaveFile,
        blocks: Vec<RamBlockInfo>,
        running: bool,
    ) -> Result<Instant, PauseError> {
        let asked = Instant::now();
        // Its disks are not complete before it is paused, and QEMU does not release its images
        // before they are.
        let mut paused_alone = None;
        if !self.copies.disks.is_empty() {
            if running {
                let client = connected(&mut self.client)?;
                client.forget_events();
                client.execute("stop", json!({}))?;
                let event = client.take_event("STOP");
                paused_alone = Some(event.map_or_else(Instant::now, |event| event.at.max(asked)));
            }
            self.complete_disks()?;
        }
        let client = connected(&mut self.client)?;
        // With `live` QEMU releases the guest's images afterwards, and `cont` takes them back.
        // Those of a guest that its owner had paused are released when it was handed over: it does
        // not run until then.
        let save = (
            "xen-save-devices-state",
            json!({ "filename": file.path(), "live": running }),
        );
        let list = (
            "human-monitor-command",
            json!({ "command-line": "info ramblock" }),
        );
        let (paused, save, list) = if let Some(paused) = paused_alone {
            let [save, list] = client.submit([save, list])?;
            (paused, save, list)
        } else if running {
            client.forget_events();
            let [stop, save, list] = client.submit([("stop", json!({})), save, list])?;
            client.answer(&stop)?;
            let event = client.take_event("STOP");
            // Without an event its owner has just paused it.
            let paused = event.map_or_else(Instant::now, |event| event.at.max(asked));
            (paused, save, list)
        } else {
            let [save, list] = client.submit([save, list])?;
            // It counts as paused now.
            (asked, save, list)
        };
        self.paused_at = Some(SystemTime::now());
        self.saving = Some(Saving {
            file,
            save,
            list,
            blocks,
        });
        tracing::debug!(stop = ?paused - asked, answer = ?paused.elapsed(), "the guest is paused");
        Ok(paused)
    }
}
