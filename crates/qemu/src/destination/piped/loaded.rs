//! Whether a guest that was loaded has ever run.
//!
//! QEMU's state does not say so: a guest that has run, and was paused by another program since, is
//! `paused` as one that has never run. QEMU's virtual clock does: it advances only while the guest
//! runs, and it is part of the device state (the section `timer`: `vmstate_timers` in QEMU's
//! `cpu-timers.c`, the same from 1.1 to 11.1). So a guest has never run if QEMU saves the clock
//! that it has loaded.

use error_reporter::Report;
use serde_json::json;
use thiserror::Error;

use crate::qmp::{Client, QmpError, migration_status};
use crate::stream::{self, SaveFile, StreamError, remove_save_files};

/// QEMU's names for the states of a guest that may never have run. (`inmigrate`: its stream has not
/// ended.)
const MAYBE_NEVER_RAN: [&str; 2] = ["paused", "prelaunch"];

/// A guest that this program has let QEMU load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadedGuest {
    /// The virtual clock in its device state, in nanoseconds. `None`: it is not known, because
    /// another program has loaded it.
    clock: Option<u64>,
}

/// It was not found out whether a guest has run.
#[derive(Debug, Error)]
pub enum HasRunError {
    /// A command failed.
    #[error("asking QEMU whether the guest has ever run")]
    Qmp(#[from] QmpError),
    /// QEMU's file cannot be read.
    #[error("reading the guest's virtual clock")]
    Read(#[source] std::io::Error),
    /// QEMU's file has another form.
    #[error("reading the guest's virtual clock")]
    Stream(#[from] StreamError),
}

impl LoadedGuest {
    /// The guest whose device state has these sections.
    pub(super) fn of_sections(sections: &[u8]) -> Self {
        let clock = stream::virtual_clock(sections);
        if clock.is_none() {
            tracing::debug!("the device state has no virtual clock");
        }
        Self { clock }
    }

    /// Whether it is certain that the guest has never run. `client` is a session on its QEMU, as
    /// long as which no other program uses QEMU's monitor.
    ///
    /// # Errors
    ///
    /// See [`HasRunError`].
    pub fn has_never_run(&self, client: &mut Client) -> Result<bool, HasRunError> {
        let state = migration_status::run_state(client)?;
        if state.status == "inmigrate" {
            return Ok(true);
        }
        let Some(loaded) = self.clock else {
            return Ok(false);
        };
        if !MAYBE_NEVER_RAN.contains(&&*state.status) {
            return Ok(false);
        }
        let file = SaveFile::pass(client)?;
        // Not `live`: QEMU keeps its images.
        let arguments = json!({ "filename": file.path(), "live": false });
        client.execute("xen-save-devices-state", arguments)?;
        if let Err(error) = remove_save_files(client) {
            let error = Report::new(&error);
            tracing::warn!(%error, "closing the file for the device state in QEMU");
        }
        let saved = file.read().map_err(HasRunError::Read)?;
        let devices = stream::SavedDevices::parse(&saved)?;
        let now = stream::virtual_clock(devices.as_bytes());
        tracing::debug!(loaded, ?now, "the guest's virtual clock");
        Ok(now == Some(loaded))
    }
}
