//! Changes QEMU's settings for a move, and restores them: at the source the backends' property
//! `discard-data`, at the destination migration capabilities and parameters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::qmp::migration_status;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};
use crate::ram::backend;
use hikkoshi_account::Side;

/// Values of the settings that we change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Capabilities, on or off.
    pub capabilities: BTreeMap<String, bool>,
    /// Parameters, as for `migrate-set-parameters`.
    pub parameters: Map<String, Value>,
    /// `discard-data` of memory backends, by their path in QEMU's object tree.
    pub discard: BTreeMap<String, bool>,
}

/// The property of a file backend that makes QEMU discard the file's content when it ends.
const DISCARD: &str = "discard-data";

/// The capabilities that the destination needs. All others are turned off: they are for QEMU's own
/// migration of the whole guest, and QEMU refuses a stream that was not written with
/// `x-ignore-shared`, for example.
///
/// Without `late-block-activate` QEMU 7.2 locks its images when the device state has been loaded.
/// This is before commit: if the migration then fails, the source cannot resume its guest ("Failed
/// to get shared write lock", tested).
const NEEDED: [&str; 2] = ["late-block-activate", "events"];

/// The parameters that the destination needs, and that differ from `found`.
fn wanted(found: &Map<String, Value>) -> Map<String, Value> {
    let mut wanted = Map::new();
    // QEMU announces the guest's network addresses after it has loaded the device state, although
    // the guest does not run yet and may never run here. So the number of announcements is set to
    // its minimum. They are announced again when the guest runs.
    wanted.insert("announce-rounds".to_owned(), 1.into());
    // Our stream stays within the host; hikkoshi encrypts between hosts.
    wanted.insert("tls-creds".to_owned(), "".into());
    // From QEMU 8.2 on. Other modes are not migrations between processes.
    wanted.insert("mode".to_owned(), "normal".into());
    wanted.retain(|name, value| found.get(name).is_some_and(|found| found != value));
    wanted
}

/// The settings to change: their present and their new values.
pub(crate) fn plan(client: &mut Client, side: Side) -> Result<(Settings, Settings), QmpError> {
    if side == Side::Source {
        let discard = discarded(client)?;
        let with = |discard| Settings {
            discard,
            ..Settings::default()
        };
        return Ok((with(opposite(&discard)), with(discard)));
    }
    let found_parameters = migration_status::parameters(client)?;
    let mut after = Settings::default();
    for (name, on) in migration_status::capabilities(client)? {
        let want = NEEDED.contains(&name.as_str());
        if want != on {
            if on {
                tracing::info!(name, "turning off a migration capability for the move");
            }
            after.capabilities.insert(name, want);
        }
    }
    after.parameters = wanted(&found_parameters);
    let mut before = Settings {
        capabilities: opposite(&after.capabilities),
        ..Settings::default()
    };
    for name in after.parameters.keys() {
        if let Some(value) = found_parameters.get(name) {
            before.parameters.insert(name.clone(), value.clone());
        }
    }
    Ok((before, after))
}

fn opposite(switches: &BTreeMap<String, bool>) -> BTreeMap<String, bool> {
    let turned = switches.iter().map(|(name, on)| (name.clone(), !on));
    turned.collect()
}

/// The backends whose file QEMU would discard when it ends, with the new value `false`: in
/// post-copy the file can hold the only copy of a page.
fn discarded(client: &mut Client) -> Result<BTreeMap<String, bool>, QmpError> {
    let mut found = BTreeMap::new();
    for backend in backend::list(client)? {
        let path = backend.qom_path();
        if qom::property(client, &path, DISCARD)? == Some(Value::Bool(true)) {
            found.insert(path, false);
        }
    }
    Ok(found)
}

/// Applies these settings.
pub(crate) fn apply(client: &mut Client, settings: &Settings) -> Result<(), QmpError> {
    if !settings.capabilities.is_empty() {
        let list: Vec<Value> = settings
            .capabilities
            .iter()
            .map(|(name, on)| json!({ "capability": name, "state": on }))
            .collect();
        client.execute("migrate-set-capabilities", json!({ "capabilities": list }))?;
    }
    if !settings.parameters.is_empty() {
        let parameters = Value::Object(settings.parameters.clone());
        client.execute("migrate-set-parameters", parameters)?;
    }
    for (path, on) in &settings.discard {
        let set = json!({ "path": path, "property": DISCARD, "value": on });
        client.execute("qom-set", set)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exists_and_differs_is_changed() {
        let Value::Object(found) = json!({ "tls-creds": "", "announce-rounds": 5 }) else {
            panic!()
        };
        assert_eq!(wanted(&found).len(), 1, "{:?}", wanted(&found));
        let Value::Object(found) = json!({ "tls-creds": "mine", "mode": "cpr-reboot" }) else {
            panic!()
        };
        assert_eq!(wanted(&found).len(), 2);
    }
}
