//! Queries the QEMU behind a monitor without attaching to it.

use std::time::Duration;

use error_reporter::Report;

use crate::process;
use crate::qmp::Monitor;
use crate::qmp::migration_status::{self, MigrationStatus};
use crate::qmp::pause_mark;

/// The timeout of an answer. A QEMU that waits for a page does not answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a QEMU's guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestState {
    /// QEMU's name for the state, such as `running` or `inmigrate`. For a guest that hikkoshi has
    /// paused for a move, these words.
    pub state: String,
    /// Whether its virtual processors run.
    pub running: bool,
    /// Whether QEMU's process has a userfaultfd for missing pages. One that has loaded no guest has
    /// it for pages that will be missing.
    pub has_userfault: bool,
    /// What QEMU reports of its last migration, or of an incoming guest.
    pub migration: LastMigration,
}

/// The last migration of a QEMU, out of it or into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastMigration {
    /// There was none.
    None,
    /// It is in progress.
    InProgress,
    /// It has ended, with or without success.
    Over,
}

impl GuestState {
    /// Queries the QEMU of this monitor.
    ///
    /// # Errors
    ///
    /// Why the query failed, as text.
    pub fn query(monitor: &dyn Monitor) -> Result<Self, String> {
        let text = |error: &dyn std::error::Error| Report::new(error).to_string();
        let mut client = monitor.open(REPLY_TIMEOUT).map_err(|error| text(&error))?;
        let state = migration_status::run_state(&mut client).map_err(|error| text(&error))?;
        let running = state.running;
        let state = pause_mark::describe(&mut client, state).map_err(|error| text(&error))?;
        let migration = migration_status::query(&mut client).map_err(|error| text(&error))?;
        let process = process::find(&client).map_err(|error| text(&error))?;
        let left = process::userfaults(&process).map_err(|error| text(&error))?;
        Ok(Self {
            state,
            running,
            has_userfault: left
                .iter()
                .any(|stale| !crate::attach::stale_userfaultfds::is_dirty_log(stale)),
            migration: match migration.status {
                MigrationStatus::None => LastMigration::None,
                status if status.is_over() => LastMigration::Over,
                _ => LastMigration::InProgress,
            },
        })
    }
}
