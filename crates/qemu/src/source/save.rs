//! Saving the device state.

use std::io::{self, Write};
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::{Cancel, SourceGuest};
use serde_json::json;
use thiserror::Error;

use super::error::COMPLETION_TIMEOUT;
use super::{PauseError, QemuSource, SaveError, SwitchoverStage};
use crate::qmp::migration::{self, MigrationStatus};
use crate::qmp::monitor::connected;
use crate::qmp::{ConnectError, QmpError};
use crate::settings::Settings;

/// How long to wait for an answer that may not come.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// The paused copy of a moved guest could not be put into `postmigrate`.
#[derive(Debug, Error)]
#[error(transparent)]
enum EndPausedCopyError {
    Connect(#[from] ConnectError),
    Qmp(#[from] QmpError),
    Pause(#[from] PauseError),
    Save(#[from] SaveError),
}

impl QemuSource {
    /// Saves the device state into `sink`. Fails once `give_up` is set. QEMU's save is
    /// then still in progress: [`resume_guest`](Self::resume_guest) ends it.
    pub(super) fn save(&mut self, sink: &mut dyn Write, give_up: &Cancel) -> Result<(), SaveError> {
        connected(&mut self.client)?.set_cancel(Some(give_up.clone()));
        let saved = self.save_with_cancel(sink, give_up);
        connected(&mut self.client)?.set_cancel(None);
        saved
    }

    fn save_with_cancel(
        &mut self,
        sink: &mut dyn Write,
        give_up: &Cancel,
    ) -> Result<(), SaveError> {
        if self.stage != SwitchoverStage::Pausing {
            return Err(SaveError::NotPaused);
        }
        let client = connected(&mut self.client)?;
        client.forget_events();
        let arguments = json!({ "state": "pre-switchover" });
        if self.undo.stopped == Some(true) {
            client.execute("migrate-continue", arguments)?;
        } else {
            // QEMU may already be writing to the socket, where it waits for us, and so
            // cannot answer.
            match client.execute_within("migrate-continue", arguments, CONTINUE_TIMEOUT) {
                Ok(_) | Err(QmpError::TimedOut { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The socket cannot be used again: dropping the reader aborts a save that is
        // still in progress.
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
        // The end of the stream alone is not enough: it also ends if QEMU fails
        // half-way.
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

    /// Lets QEMU complete a save that was paused before its end, because the guest
    /// does not resume here.
    pub(super) fn finish_save(&mut self) -> Result<(), QmpError> {
        let Some(reader) = self.reader.take() else {
            if let Err(error) = self.end_paused_copy() {
                let pid = self.pid();
                tracing::warn!(
                    error = %Report::new(&error),
                    "the guest is at the destination, but the copy in QEMU (process {pid}) at the \
                     source is still in the state 'paused': end that QEMU before anyone resumes \
                     the copy (QMP command 'cont'), or two copies run"
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
        // The caller may use QEMU after this.
        migration::run_state_after_migration(client).map(drop)
    }

    /// If an engine is killed while it saves a guest that its owner had paused, QEMU
    /// returns the guest to `paused` and opens its disks again. When the guest is at
    /// the destination, this saves it once more, completely, and discards the result.
    fn end_paused_copy(&mut self) -> Result<(), EndPausedCopyError> {
        if self.undo.stopped != Some(false) || self.has_ended() {
            return Ok(());
        }
        let client = self.monitor()?;
        if migration::run_state_after_migration(client)?.status != "paused" {
            return Ok(());
        }
        // The settings are still those of the previous engine.
        self.stop_with(&Settings::default(), true)?;
        Ok(self.save(&mut io::sink(), &Cancel::new())?)
    }
}
