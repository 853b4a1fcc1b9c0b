//! QEMU's migration status and run state: queries, waiting, cancelling.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use hikkoshi_wire::text::one_line;
use serde_json::{Map, Value, json};

use crate::qmp::{Client, QmpError, QmpEvent};

/// QEMU's migration status, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MigrationStatus {
    /// There has been no migration.
    None,
    /// The guest is paused, and QEMU waits for `migrate-continue`.
    PreSwitchover,
    /// It succeeded.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// It is in progress.
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

    /// Whether no migration is in progress.
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
    /// QEMU's error message after a failure.
    pub(crate) error: Option<String>,
    /// QEMU's reasons why this guest cannot be migrated.
    pub(crate) blocked: Vec<String>,
}

pub(crate) fn query(client: &mut Client) -> Result<MigrationInfo, QmpError> {
    let answer = client.execute("query-migrate", json!({}))?;
    let text = |key| answer.get(key).and_then(Value::as_str);
    let blocked = answer.get("blocked-reasons").and_then(Value::as_array);
    Ok(MigrationInfo {
        status: MigrationStatus::parse(text("status").unwrap_or("none")),
        error: text("error-desc").map(|text| one_line(text).into_owned()),
        blocked: blocked
            .into_iter()
            .flatten()
            .filter_map(|reason| reason.as_str().map(|text| one_line(text).into_owned()))
            .collect(),
    })
}

/// All migration capabilities.
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

/// All migration parameters.
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
    /// QEMU's name for the state.
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

/// How often to query if no event comes.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until `done` accepts the migration's status. Uses events and, in case one
/// was missed, queries. Calls `seen` with every event.
///
/// `None` after `timeout`.
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
        // QEMU may be waiting for a missing page now, so use the full time.
        let answer = client.execute_within("query-migrate", json!({}), left)?;
        let text = answer.get("status").and_then(Value::as_str);
        let status = MigrationStatus::parse(text.unwrap_or("none"));
        if done(&status) {
            // Events that came before the answer.
            client.queued_events().for_each(&mut seen);
            return Ok(Some(status));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_in_progress_and_ended() {
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
