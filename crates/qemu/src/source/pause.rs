//! Pausing the guest for the switchover.

use std::time::Instant;

use error_reporter::Report;
use serde_json::json;

use super::error::SETUP_TIMEOUT;
use super::undo_record::UndoRecord;
use super::{PauseError, QemuSource, SwitchoverStage};
use crate::attach::machine;
use crate::attach::preflight::{self, MoveInProgress, Refusal, Side};
use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::monitor::connected;
use crate::settings::{self, Settings};
use crate::stream::{self, DeviceStateReader, ReadUntil};

impl QemuSource {
    /// Pauses the guest, with QEMU waiting in `pre-switchover`. Returns the instant at
    /// which it stopped.
    pub(super) fn stop_guest(&mut self) -> Result<Instant, PauseError> {
        let client = connected(&mut self.client)?;
        let state = migration::run_state(client)?;
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
        let (before, after) = settings::plan(client, Side::Source)?;
        let undo = UndoRecord {
            settings: before,
            stopped: Some(state.running),
        };
        self.undo_recorder
            .write(&undo)
            .map_err(PauseError::Record)?;
        self.undo = undo;
        let outcome = self.stop_with(&after, state.running);
        if outcome.is_err()
            && let Err(error) = self.resume_guest()
        {
            tracing::error!(error = %Report::new(&error), "resuming the guest after pausing it failed");
        }
        outcome
    }

    /// Pauses the guest with these settings. `running`: whether it runs now.
    pub(super) fn stop_with(
        &mut self,
        settings: &Settings,
        running: bool,
    ) -> Result<Instant, PauseError> {
        let client = connected(&mut self.client)?;
        settings::apply(client, settings)?;
        let until = if running {
            ReadUntil::End
        } else {
            // At this point QEMU can still return the guest to `paused`.
            ReadUntil::Description
        };
        let socket = stream::open(client, until)?;
        self.stage = SwitchoverStage::Pausing;
        self.reader = Some(DeviceStateReader::start(socket, until)?);
        client.forget_events();
        let asked = Instant::now();
        client.execute(
            "migrate",
            json!({ "uri": format!("fd:{}", stream::FD_NAME) }),
        )?;
        let mut stopped = None;
        let status = migration::wait_status(
            client,
            "the guest to be paused for the switchover",
            SETUP_TIMEOUT,
            |status| *status == MigrationStatus::PreSwitchover || status.is_over(),
            |event| {
                if event.name == "STOP" {
                    stopped = Some(event.at);
                }
            },
        )?;
        match status {
            Some(MigrationStatus::PreSwitchover) => {
                let now = Instant::now();
                // A guest that did not run counts as paused now.
                let at = stopped.filter(|_| running).map_or(now, |at| at.max(asked));
                tracing::debug!(set_up = ?at - asked, quiet = ?now - at, "the guest is paused");
                Ok(at)
            }
            Some(status) => Err(PauseError::Ended {
                status: status.to_string(),
                error: migration::query(client)?.error,
            }),
            None => Err(PauseError::TimedOut),
        }
    }
}
