//! What was done to a guest at the source after it was handed over, found out by another engine.
//!
//! While an engine runs, the owner of the monitor reports it
//! ([`Monitor::check_handed_over`](crate::qmp::Monitor::check_handed_over)). What is done while
//! none runs is found in QEMU: whether the guest runs, and whether it was reset. A reset of a
//! paused guest changes QEMU's state from `paused` to `prelaunch` (`main_loop_should_exit` in
//! QEMU's `runstate.c`), and only running the guest changes that, which QEMU refuses
//! (`move_lock.rs`).

use error_reporter::Report;
use hikkoshi_engine::{GuestError, SourceGuest};
use thiserror::Error;

use super::QemuSource;
use crate::qmp::pause_mark;
use crate::qmp::reconnect::MonitorError;
use crate::qmp::{Client, QmpError, migration_status};

/// QEMU's state after the reset of a paused guest, and before a guest first runs.
const RESET: &str = "prelaunch";

/// Its pages may be wrong.
#[derive(Debug, Error)]
enum Harm {
    /// It runs.
    #[error(
        "the guest runs at the source, although it was, or may have been, handed over: another \
         program resumed it. No more of its pages are sent. If the destination has never run it, \
         give up the migration (--give-up). If it has, pause the guest here at once (QMP command \
         'stop'). Pages that were written here since then do not belong to the guest at the \
         destination; if it still needs one of them, reboot it from its disks"
    )]
    Runs,
    /// It was reset while no engine watched it.
    #[error(
        "the guest was reset at the source after it was, or may have been, handed over, by another \
         program: its devices and its firmware may have written to the guest's memory, so no more of \
         its pages are sent"
    )]
    WasReset,
}

impl QemuSource {
    /// Fails if the guest, which another engine has handed over, runs or was reset. A reset is
    /// reported once.
    pub(super) fn check_not_harmed(&mut self) -> Result<(), GuestError> {
        if self.has_ended() {
            return Ok(());
        }
        // After a guest that ran was paused, the state is `paused`.
        let was_paused = self.undo.stopped == Some(true);
        let found = self
            .session()
            .map_err(MonitorError::from)
            .and_then(|client| Ok(harm(client, was_paused)?));
        match found {
            Ok(None) => Ok(()),
            Ok(Some(harm)) => {
                if matches!(harm, Harm::WasReset) {
                    self.note_reported();
                }
                Err(GuestError::new(harm))
            }
            // Only its memory is needed.
            Err(error) => {
                tracing::warn!(
                    error = %Report::new(&error),
                    "querying whether the guest is paused at the source; it should be"
                );
                Ok(())
            }
        }
    }

    /// Notes in QEMU that harm is being reported: the next engine sends the pages as they are.
    pub(super) fn note_reported(&mut self) {
        let noted = self
            .session()
            .map_err(MonitorError::from)
            .and_then(|client| Ok(pause_mark::set_harm_reported(client)?));
        if let Err(error) = noted {
            tracing::warn!(
                error = %Report::new(&error),
                "noting in QEMU what was reported: the next engine reports it again"
            );
        }
    }
}

fn harm(client: &mut Client, was_paused: bool) -> Result<Option<Harm>, QmpError> {
    let state = migration_status::run_state(client)?;
    if state.running {
        return Ok(Some(Harm::Runs));
    }
    let was_reset = was_paused && state.status == RESET;
    if was_reset && !pause_mark::is_harm_reported(client)? {
        return Ok(Some(Harm::WasReset));
    }
    Ok(None)
}
