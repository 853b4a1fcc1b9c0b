//! Saving the device state.

use std::io::{self, Write};
use std::time::Duration;

use hikkoshi_engine::{Cancel, SourceGuest};
use serde_json::json;
use thiserror::Error;

use super::error::COMPLETION_TIMEOUT;
use super::{PauseError, QemuSource, SaveError, SwitchoverStage};
use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::monitor::connected;
use crate::qmp::{ConnectError, QmpError};
use crate::settings::Settings;

/// How long to wait for an answer that need not come.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// A copy that is left could not be brought to its end.
#[derive(Debug, Error)]
#[error(transparent)]
enum EndPausedCopyError {
    Connect(#[from] ConnectError),
    Qmp(#[from] QmpError),
    Pause(#[from] PauseError),
    Save(#[from] SaveError),
}

impl QemuSource {
    /// Once `give_up` is set it ends with an error. QEMU is left as it is then:
    /// [`resume`](Self::resume_guest) ends its save.
    pub(super) fn save(&mut self, sink: &mut dyn Write, give_up: &Cancel) -> Result<(), SaveError> {
        connected(&mut self.client)?.set_cancel(Some(give_up.clone()));
        let saved = self.save_until(sink, give_up);
        connected(&mut self.client)?.set_cancel(None);
        saved
    }

    fn save_until(&mut self, sink: &mut dyn Write, give_up: &Cancel) -> Result<(), SaveError> {
        if self.stage != SwitchoverStage::Pausing {
            return Err(SaveError::NotPaused);
        }
        let client = connected(&mut self.client)?;
        client.forget_events();
        let arguments = json!({ "state": "pre-switchover" });
        if self.undo.stopped == Some(true) {
            client.execute("migrate-continue", arguments)?;
        } else {
            // QEMU may be in the middle of its writing already, where it is to
            // wait for us, and does not come round to answering.
            match client.execute_within("migrate-continue", arguments, CONTINUE_TIMEOUT) {
                Ok(_) | Err(QmpError::TimedOut { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Whatever happens now, the socket is used up: dropping the reader
        // breaks a save that is still going on.
        let reader = self.reader.take().ok_or(SaveError::NotPaused)?;
        let mut bytes = 0u64;
        while let Some(piece) = reader
            .next_chunk(give_up)
            .ok_or(SaveError::GivenUp { bytes })?
        {
            let piece = piece.map_err(SaveError::Read)?;
            sink.write_all(&piece).map_err(SaveError::Sink)?;
            bytes += piece.len() as u64;
        }
        sink.flush().map_err(SaveError::Sink)?;
        if reader.is_writer_waiting() {
            tracing::debug!(bytes, "the device state is saved; QEMU waits");
            self.reader = Some(reader);
            self.stage = SwitchoverStage::Saved;
            return Ok(());
        }
        // The end of the stream alone proves nothing: it ends too when QEMU
        // fails half-way.
        let status = migration::wait_status(
            client,
            "the end of the device state",
            COMPLETION_TIMEOUT,
            MigrationStatus::is_over,
            |_| {},
        )?;
        match status {
            Some(MigrationStatus::Completed) => {
                tracing::debug!(bytes, "the device state is saved");
                self.stage = SwitchoverStage::Saved;
                Ok(())
            }
            Some(status) => Err(SaveError::Failed {
                status: status.to_string(),
                error: migration::query(client)?.error,
            }),
            None => Err(SaveError::TimedOut),
        }
    }

    /// Lets QEMU finish a save that was left before its end: the guest does
    /// not come back.
    pub(super) fn finish_save(&mut self) -> Result<(), QmpError> {
        let Some(reader) = self.reader.take() else {
            if let Err(error) = self.end_paused_copy() {
                let pid = self.pid();
                tracing::warn!(
                    %error,
                    "the guest is at the destination, and QEMU (process {pid}) still calls the \
                     copy that is left here 'paused': end that QEMU before anybody lets it go on \
                     ('cont'), or there are two"
                );
            }
            return Ok(());
        };
        reader.finish();
        let client = connected(&mut self.client)?;
        let doing = "the end of the migration";
        let status = migration::wait_status(
            client,
            doing,
            COMPLETION_TIMEOUT,
            MigrationStatus::is_over,
            |_| {},
        )?;
        if status.is_none() {
            return Err(QmpError::TimedOut {
                doing: doing.to_owned(),
                after: COMPLETION_TIMEOUT,
            });
        }
        // Whoever is told that this is over may want to do something with QEMU.
        migration::run_state_after_migration(client).map(drop)
    }

    /// A guest that its owner had paused is so again when the engine that saved
    /// it was killed in the middle, with its disks opened again. It is at the
    /// destination: it is saved once more, to the end, and nobody reads that.
    fn end_paused_copy(&mut self) -> Result<(), EndPausedCopyError> {
        if self.undo.stopped != Some(false) || self.has_ended() {
            return Ok(());
        }
        let client = self.monitor()?;
        if migration::run_state_after_migration(client)?.status != "paused" {
            return Ok(());
        }
        // The settings are still those of the engine before.
        self.stop_with(&Settings::default(), true)?;
        Ok(self.save(&mut io::sink(), &Cancel::new())?)
    }
}
