//! The accelerator that executes the guest.

use serde_json::{Value, json};

use super::{Client, QmpError};

/// Whether KVM executes the guest.
///
/// QEMU 7.2 and 10.0 have only `query-kvm`, which is deprecated in 11.1. (The command of 11.1 loads
/// QEMU's modules of accelerators.)
pub(crate) fn uses_kvm(client: &mut Client) -> Result<bool, QmpError> {
    match client.execute("query-accelerators", json!({})) {
        Ok(answer) => match answer.get("enabled").and_then(Value::as_str) {
            Some(name) => Ok(name == "kvm"),
            None => Err(QmpError::unexpected(
                "query-accelerators",
                answer.to_string(),
            )),
        },
        Err(error) if error.is_unknown_command() => {
            let answer = client.execute("query-kvm", json!({}))?;
            let enabled = answer.get("enabled").and_then(Value::as_bool);
            enabled.ok_or_else(|| QmpError::unexpected("query-kvm", answer.to_string()))
        }
        Err(error) => Err(error),
    }
}
