//! QEMU's own idea of where a migration, and the guest, is.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use hikkoshi_wire::text::one_line;
use serde_json::{Map, Value, json};

use crate::qmp::{Client, QmpError, QmpEvent};

/// QEMU's migration status, as far as it makes a difference here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MigrationStatus {
    /// There never was one.
    None,
    /// The guest is stopped, QEMU waits for `migrate-continue`.
    PreSwitchover,
    /// It went well.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It goes on, in one way or another.
    Active(String),
}

impl MigrationStatus {
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "none" => Self::None,
            "pre-switchover" => Self::PreSwitchover,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            // setup, active, device, cancelling, wait-unplug, colo, …
            other => Self::Active(other.to_owned()),
        }
    }

    /// Whether nothing goes on any more.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self, Self::PreSwitchover | Self::Active(_))
    }
}

impl fmt::Display for MigrationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::PreSwitchover => "pre-switchover",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Active(name) => name,
        })
    }
}

/// The answer to `query-migrate`.
#[derive(Debug)]
pub(crate) struct MigrationInfo {
    pub(crate) status: MigrationStatus,
    /// QEMU's words about a failure.
    pub(crate) error: Option<String>,
    /// Why this guest cannot be migrated, if it cannot.
    pub(crate) blocked: Vec<String>,
}

pub(crate) fn query(client: &mut Client) -> Result<MigrationInfo, QmpError> {
    let answer = client.execute("query-migrate", json!({}))?;
    let text = |key| answer.get(key).and_then(Value::as_str);
    let blocked = answer.get("blocked-reasons").and_then(Value::as_array);
    Ok(MigrationInfo {
        status: MigrationStatus::parse(text("status").unwrap_or("none")),
        error: text("error-desc").map(|said| one_line(said).into_owned()),
        blocked: blocked
            .into_iter()
            .flatten()
            .filter_map(|reason| reason.as_str().map(|said| one_line(said).into_owned()))
            .collect(),
    })
}

/// All capabilities.
pub(crate) fn capabilities(client: &mut Client) -> Result<BTreeMap<String, bool>, QmpError> {
    let command = "query-migrate-capabilities";
    let answer = client.execute(command, json!({}))?;
    let rows = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected(command, "not a list"))?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let name = row.get("capability")?.as_str()?;
            Some((name.to_owned(), row.get("state")?.as_bool()?))
        })
        .collect())
}

/// All parameters.
pub(crate) fn parameters(client: &mut Client) -> Result<Map<String, Value>, QmpError> {
    let command = "query-migrate-parameters";
    match client.execute(command, json!({}))? {
        Value::Object(found) => Ok(found),
        _ => Err(QmpError::unexpected(command, "not an object")),
    }
}

/// The answer to `query-status`.
#[derive(Debug)]
pub(crate) struct RunState {
    /// QEMU's name for it.
    pub(crate) status: String,
    /// Whether the guest's processors run.
    pub(crate) running: bool,
}

pub(crate) fn run_state(client: &mut Client) -> Result<RunState, QmpError> {
    let answer = client.execute("query-status", json!({}))?;
    let status = answer.get("status").and_then(Value::as_str);
    let running = answer.get("running").and_then(Value::as_bool);
    match (status, running) {
        (Some(status), Some(running)) => Ok(RunState {
            status: status.to_owned(),
            running,
        }),
        _ => Err(QmpError::unexpected("query-status", answer.to_string())),
    }
}

/// How often to ask when no event tells.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until the migration's status is one that `done` accepts, by events
/// and, in case one was missed, by asking. `seen` is shown every event.
///
/// `None` when that takes longer than `timeout`.
pub(crate) fn wait_status(
    client: &mut Client,
    doing: &str,
    timeout: Duration,
    done: impl Fn(&MigrationStatus) -> bool,
    mut seen: impl FnMut(&QmpEvent),
) -> Result<Option<MigrationStatus>, QmpError> {
    let deadline = Instant::now() + timeout;
    loop {
        let pause = deadline.min(Instant::now() + QUERY_INTERVAL);
        let status = client.wait_event(doing, pause, |event| {
            seen(event);
            let status = MigrationStatus::parse(event.migration_status()?);
            done(&status).then_some(status)
        })?;
        if status.is_some() {
            return Ok(status);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // QEMU may be stuck on a missing page just now: the same timeouts.
        let answer = client.execute_within("query-migrate", json!({}), left)?;
        let text = answer.get("status").and_then(Value::as_str);
        let status = MigrationStatus::parse(text.unwrap_or("none"));
        if done(&status) {
            return Ok(Some(status));
        }
    }
}

/// How long a cancelled migration may take to come to its end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// How often to look whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Brings an outgoing migration to its end, by cancelling it if it goes on.
///
/// A cancelled or failed migration makes QEMU resume the guest if it ran when
/// the migration began; a completed one leaves it stopped.
pub(crate) fn cancel_and_wait(client: &mut Client) -> Result<MigrationInfo, QmpError> {
    let deadline = Instant::now() + CANCEL_TIMEOUT;
    let mut cancelled = false;
    loop {
        let info = query(client)?;
        if info.status.is_over() {
            return Ok(info);
        }
        if !cancelled {
            tracing::info!(status = %info.status, "cancelling QEMU's migration");
            client.execute("migrate_cancel", json!({}))?;
            cancelled = true;
        }
        if Instant::now() > deadline {
            return Err(QmpError::TimedOut {
                doing: format!(
                    "migrate_cancel (the migration's status stays {})",
                    info.status
                ),
                after: CANCEL_TIMEOUT,
            });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// How long a guest may take to run after `cont`, and QEMU to come to rest.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

/// The run state after a migration that is over: QEMU says that it is a moment
/// before it leaves `finish-migrate`, and refuses `cont` until then.
pub(crate) fn run_state_after_migration(client: &mut Client) -> Result<RunState, QmpError> {
    let deadline = Instant::now() + RESUME_TIMEOUT;
    loop {
        let state = run_state(client)?;
        if state.status != "finish-migrate" || Instant::now() > deadline {
            return Ok(state);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Makes a guest run again that a migration of ours stopped. Gives the run
/// state in the end.
///
/// Only states that a migration causes are left by `cont`: a guest that its
/// owner paused (state `paused`) stays as it is.
pub(crate) fn resume_after_migration(client: &mut Client) -> Result<RunState, QmpError> {
    let deadline = Instant::now() + RESUME_TIMEOUT;
    loop {
        let state = run_state(client)?;
        let stopped_by_migration =
            matches!(state.status.as_str(), "finish-migrate" | "postmigrate");
        if state.running || !stopped_by_migration || Instant::now() > deadline {
            return Ok(state);
        }
        match client.execute("cont", json!({})) {
            Ok(_) => {}
            // "Migration is not finalized yet": the status is ahead of the run state.
            Err(error) if error.is_refusal() && Instant::now() + POLL_INTERVAL < deadline => {
                tracing::debug!(%error, "cont");
                if state.status == "postmigrate" {
                    // Not a matter of time: storage, mostly.
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_and_what_is_not() {
        for text in ["none", "completed", "failed", "cancelled"] {
            let status = MigrationStatus::parse(text);
            assert!(status.is_over());
            assert_eq!(status.to_string(), text);
        }
        for text in [
            "setup",
            "active",
            "pre-switchover",
            "device",
            "cancelling",
            "failing",
            "wait-unplug",
            "postcopy-active",
        ] {
            let status = MigrationStatus::parse(text);
            assert!(!status.is_over());
            assert_eq!(status.to_string(), text);
        }
    }
}
