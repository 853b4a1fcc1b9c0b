//! Announces the guest's network addresses.

use std::time::Duration;

use error_reporter::Report;
use serde_json::{Map, Value, json};

use crate::qmp::Client;

/// How long to wait for QEMU's answer. In post-copy its main loop may itself wait for
/// a page, which does not come if the link has just failed. Then recovery is more
/// urgent.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// The parameters of an announcement: their names here and in the migration
/// parameters, and QEMU's defaults.
const PARAMETERS: [(&str, &str, u64); 4] = [
    ("initial", "announce-initial", 50),
    ("max", "announce-max", 550),
    ("rounds", "announce-rounds", 5),
    ("step", "announce-step", 100),
];

/// Makes QEMU announce the addresses of the guest's network cards, so that switches
/// update their port tables. A failure is only logged, because the guest's own
/// packets have the same effect.
pub(crate) fn announce(client: &mut Client) {
    announce_with(client, &Map::new());
}

/// Like [`announce`], with the `announce-…` parameters in `owner`, and QEMU's
/// defaults for the others.
pub(crate) fn announce_with(client: &mut Client, owner: &Map<String, Value>) {
    let arguments: Map<String, Value> = PARAMETERS
        .iter()
        .map(|(name, owners_name, default)| {
            let value = owner.get(*owners_name).and_then(Value::as_u64);
            ((*name).to_owned(), json!(value.unwrap_or(*default)))
        })
        .collect();
    if let Err(error) =
        client.execute_within("announce-self", Value::Object(arguments), REPLY_TIMEOUT)
    {
        tracing::warn!(error = %Report::new(&error), "announcing the guest's network addresses");
    }
}
