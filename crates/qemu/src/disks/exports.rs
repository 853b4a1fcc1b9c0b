//! The disks that the destination's QEMU serves, so that the source's can copy to them.

use serde_json::json;

use super::is_ours;
use crate::qmp::{Client, QmpError};

/// The name of the listening socket's descriptor in QEMU.
pub(crate) const LISTENER: &str = "hikkoshi-disks";

/// Whether disks are served here for a copy. If no engine has exclusive access, a killed one has
/// left them.
pub(crate) fn has_exports(client: &mut Client) -> Result<bool, QmpError> {
    let exports = client.execute("query-block-exports", json!({}))?;
    let ids = exports.as_array().into_iter().flatten();
    let mut ids = ids.filter_map(|export| export.get("id")?.as_str());
    Ok(ids.any(is_ours))
}

/// Stops the server, and with it its exports and connections.
pub(crate) fn stop(client: &mut Client) -> Result<(), QmpError> {
    for (command, arguments) in [
        ("closefd", json!({ "fdname": LISTENER })),
        ("nbd-server-stop", json!({})),
    ] {
        match client.execute(command, arguments) {
            Err(error) if !error.is_refusal() => return Err(error),
            // It was not there, or not started.
            _ => {}
        }
    }
    match has_exports(client)? {
        false => Ok(()),
        true => Err(QmpError::unexpected(
            "nbd-server-stop",
            "the guest's disks are still exported",
        )),
    }
}
