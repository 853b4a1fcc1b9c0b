//! TPMs whose state does not move with the guest.

use serde_json::{Value, json};

use super::Refusal;
use crate::qmp::{Client, QmpError};

/// The TPMs of which QEMU does not have the state: all but those of an emulator (swtpm), which
/// gives it to QEMU as part of the device state.
pub(super) fn check(client: &mut Client) -> Result<Vec<Refusal>, QmpError> {
    let answer = match client.execute("query-tpm", json!({})) {
        // This QEMU was built without TPMs.
        Err(error) if error.is_unknown_command() => return Ok(Vec::new()),
        answer => answer?,
    };
    let backends = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-tpm", "not a list"))?;
    let text = |value: Option<&Value>| {
        value
            .and_then(Value::as_str)
            .unwrap_or("unknown")
            .to_owned()
    };
    let refused = backends.iter().filter_map(|backend| {
        let kind = text(backend.pointer("/options/type"));
        (kind != "emulator").then(|| Refusal::Device {
            path: text(backend.get("id")),
            kind: format!("TPM backend of the type {kind}"),
            why: "its state is in a device of the host, and stays there",
            process: String::new(),
        })
    });
    Ok(refused.collect())
}
