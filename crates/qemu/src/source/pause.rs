//! Pausing the guest for the switchover.
use std::time::Instant;

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
    pub(super) fn stop_guest(&mut self) -> Result<Instant, PauseError> {
        let client = connected(&mut self.client)?;
        let state = migration::run_state(client)?;
        if !matches!(state.status.as_str(), "running" | "paused" | "prelaunch") {
            return Err(Refusal::State {
                state: state.status,
                advice: "it has changed while we were at it; see to it and try again",
            }
            .into());
        }
        let under_way = MoveInProgress {
            mode: self.mode,
            rounds: self.log.is_some(),
            drained: self.needs_drain,
        };
        preflight::check_again(client, under_way, &self.allowed)?;
        // The destination has compared its machine with that.
        let now = machine::read(client)?;
        now.fits(&self.machine).map_err(Refusal::Changed)?;
        // Its owner may have paused or resumed it since we attached.
        self.qemu.description.running = state.running;
        let (before, after) = settings::plan(client, Side::Source)?;
        let undo = UndoRecord {
            settings: before,
            stopped: Some(state.running),
        };
        self.journal.write(&undo).map_err(PauseError::Record)?;
        self.undo = undo;
        let outcome = self.stop_with(&after, state.running);
        if outcome.is_err()
            && let Err(error) = self.resume_guest()
        {
            tracing::error!(%error, "after a failed pause");
        }
        outcome
    }

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
            // Where it can still be brought back to being paused.
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
            "the guest's stop for the switchover",
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
                // A guest that did not run stopped, if anything, now.
                let at = stopped.filter(|_| running).map_or(now, |at| at.max(asked));
                tracing::debug!(set_up = ?at - asked, quiet = ?now - at, "the guest is stopped");
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
