//! What has become of the guest of a migration that has failed.

use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_engine::SourceProcess;

use super::QemuSource;
use crate::qmp::pause_mark;
use crate::qmp::{COMMAND_TIMEOUT, Client, QmpError, migration_status};

/// How long QEMU may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a QEMU that has closed its monitor may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to look whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The guest of a source, as QEMU reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestNow {
    /// Its processors run.
    Runs,
    /// They do not. QEMU's name for the state, such as `paused` or `shutdown`. For a guest that
    /// hikkoshi has paused for a move, these words.
    Stopped(String),
    /// QEMU has ended; why, if that is known, for people.
    Ended(Option<String>),
    /// QEMU does not answer.
    Unknown,
}

impl QemuSource {
    /// Queries QEMU for its guest, whatever the migration has done to it.
    pub fn guest_now(&mut self) -> GuestNow {
        match self.query() {
            Ok(state) => state,
            Err(_) if self.ends_soon() => self.ended(),
            Err(why) => {
                tracing::debug!(why, "the guest's state is not known");
                GuestNow::Unknown
            }
        }
    }

    fn query(&mut self) -> Result<GuestNow, String> {
        let text = |error: &dyn std::error::Error| Report::new(error).to_string();
        if self.has_exited() {
            return Ok(self.ended());
        }
        let client = self.session().map_err(|error| text(&error))?;
        client.set_timeout(ANSWER_TIMEOUT);
        let state = run_state(client);
        client.set_timeout(COMMAND_TIMEOUT);
        state.map_err(|error| text(&error))
    }

    fn ended(&mut self) -> GuestNow {
        GuestNow::Ended(self.why_ended())
    }

    fn ends_soon(&self) -> bool {
        let deadline = Instant::now() + END_TIMEOUT;
        while !self.has_exited() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }
}

fn run_state(client: &mut Client) -> Result<GuestNow, QmpError> {
    let state = migration_status::run_state(client)?;
    if state.running {
        return Ok(GuestNow::Runs);
    }
    Ok(GuestNow::Stopped(pause_mark::describe(client, state)?))
}
