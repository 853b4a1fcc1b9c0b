//! Commands of the human monitor, for what QMP does not report.

use serde_json::json;

use super::{Client, QmpError};

/// The answer to a command of the human monitor.
pub(crate) fn human(client: &mut Client, command: &str) -> Result<String, QmpError> {
    let answer = client.execute("human-monitor-command", json!({ "command-line": command }))?;
    match answer.as_str() {
        Some(text) if !text.starts_with("unknown command") => Ok(text.to_owned()),
        _ => Err(QmpError::unexpected(command, answer.to_string())),
    }
}
