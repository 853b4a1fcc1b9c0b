//! Changes QEMU's migration capabilities and parameters, and the backends' property
//! `discard-data`, for a move, and restores them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::attach::preflight::Side;
use crate::attach::ram::backend;
use crate::qmp::migration;
use crate::qmp::qom;
use crate::qmp::{Client, QmpError};

/// Values of the settings that we change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Capabilities, on or off.
    pub capabilities: BTreeMap<String, bool>,
    /// Parameters, as for `migrate-set-parameters`.
    pub parameters: Map<String, Value>,
    /// `discard-data` of memory backends, by their path in QEMU's object tree.
    #[serde(default)]
    pub discard: BTreeMap<String, bool>,
}

/// In bytes per second: more than the memory bandwidth, so that QEMU never throttles its
/// stream to our socket. The low bits mark the value as ours, see [`are_ours`].
const MAX_BANDWIDTH: u64 = (1 << 40) + 0x6869_6b6b;

/// QEMU's default value of `max-bandwidth`.
const DEFAULT_BANDWIDTH: u64 = 128 << 20;

/// In milliseconds: the maximum that QEMU accepts. Its stream contains only memory that is
/// not shared (mostly video memory). With a limit that is never reached, QEMU pauses the
/// guest after one pass and does not send changes in further rounds.
const DOWNTIME_LIMIT: u64 = 2_000_000;

/// The property of a file backend that makes QEMU discard the file's content when it ends.
const DISCARD: &str = "discard-data";

/// The capabilities that are needed at this side. All others are turned off: they are for
/// QEMU's own migration of the whole guest.
fn needed(side: Side) -> &'static [&'static str] {
    match side {
        Side::Source => &["x-ignore-shared", "pause-before-switchover", "events"],
        // Without late-block-activate QEMU 7.2 locks its images when the device state
        // has been loaded. This is before commit: if the migration then fails, the
        // source cannot resume its guest ("Failed to get shared write lock", tested).
        Side::Destination => &["x-ignore-shared", "late-block-activate", "events"],
    }
}

/// The parameters that are needed at this side and differ from `found`.
fn wanted(side: Side, found: &Map<String, Value>) -> Map<String, Value> {
    let mut wanted = Map::new();
    match side {
        Side::Source => {
            wanted.insert("max-bandwidth".to_owned(), MAX_BANDWIDTH.into());
            wanted.insert("downtime-limit".to_owned(), DOWNTIME_LIMIT.into());
        }
        // QEMU announces the guest's network addresses after it has loaded the
        // device state, although the guest does not run yet and may never run
        // here. So the number of announcements is set to its minimum. They are
        // announced again when the guest runs.
        Side::Destination => {
            wanted.insert("announce-rounds".to_owned(), 1.into());
        }
    }
    // Our stream stays within the host; hikkoshi encrypts between hosts.
    wanted.insert("tls-creds".to_owned(), "".into());
    // From QEMU 8.2 on. Other modes are not migrations between processes.
    wanted.insert("mode".to_owned(), "normal".into());
    wanted.retain(|name, value| found.get(name).is_some_and(|found| found != value));
    wanted
}

/// The settings to change: their present and their new values.
pub(crate) fn plan(client: &mut Client, side: Side) -> Result<(Settings, Settings), QmpError> {
    let found_capabilities = migration::capabilities(client)?;
    let found_parameters = migration::parameters(client)?;
    let mut after = Settings::default();
    for (name, on) in &found_capabilities {
        let want = needed(side).contains(&name.as_str());
        if want != *on {
            if *on {
                tracing::info!(name, "turning off a migration capability for the move");
            }
            after.capabilities.insert(name.clone(), want);
        }
    }
    after.parameters = wanted(side, &found_parameters);
    if side == Side::Source {
        after.discard = discarded(client)?;
    }
    let mut before = Settings {
        capabilities: opposite(&after.capabilities),
        parameters: Map::new(),
        discard: opposite(&after.discard),
    };
    for name in after.parameters.keys() {
        if let Some(value) = found_parameters.get(name) {
            before.parameters.insert(name.clone(), value.clone());
        }
    }
    if side == Side::Source && found_parameters.get("max-bandwidth") == Some(&MAX_BANDWIDTH.into())
    {
        // A killed run left it, and the original value is not known.
        tracing::warn!(
            "an earlier run left QEMU's max-bandwidth changed; it will be reset to QEMU's default"
        );
        before
            .parameters
            .insert("max-bandwidth".to_owned(), DEFAULT_BANDWIDTH.into());
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

/// Whether the present settings are those that we set at a source.
pub(crate) fn are_ours(client: &mut Client) -> Result<bool, QmpError> {
    Ok(migration::parameters(client)?.get("max-bandwidth") == Some(&MAX_BANDWIDTH.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exists_and_differs_is_changed() {
        let Value::Object(found) = json!({
            "max-bandwidth": DEFAULT_BANDWIDTH, "downtime-limit": 300, "tls-creds": "",
            "announce-rounds": 5
        }) else {
            panic!()
        };
        let source = wanted(Side::Source, &found);
        assert_eq!(source.len(), 2, "{source:?}");
        let destination = wanted(Side::Destination, &found);
        assert_eq!(destination.len(), 1, "{destination:?}");
        let Value::Object(found) = json!({
            "max-bandwidth": 1, "downtime-limit": 300, "tls-creds": "mine", "mode": "cpr-reboot"
        }) else {
            panic!()
        };
        assert_eq!(wanted(Side::Source, &found).len(), 4);
    }

    #[test]
    fn settings_survive_serialization() {
        let settings = Settings {
            capabilities: [("events".to_owned(), false)].into(),
            parameters: wanted(
                Side::Source,
                json!({ "max-bandwidth": 1 }).as_object().unwrap(),
            ),
            discard: [("/objects/ram".to_owned(), true)].into(),
        };
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }
}
