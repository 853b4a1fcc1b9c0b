//! What an image holds besides the content of the disk: internal snapshots and dirty bitmaps. A
//! copy of the disk does not have them.

use serde_json::{Value, json};

use super::list::BlockDisk;
use crate::qmp::{Client, QmpError};

/// What a disk has besides its content, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LeftBehind {
    pub(crate) snapshots: Vec<String>,
    pub(crate) bitmaps: Vec<String>,
    /// Those of the bitmaps that are not in the image: they end with QEMU.
    pub(crate) in_memory: Vec<String>,
}

/// All block nodes, as QEMU lists them.
pub(super) fn nodes(client: &mut Client) -> Result<Value, QmpError> {
    client.execute("query-named-block-nodes", json!({ "flat": true }))
}

impl LeftBehind {
    /// That of this disk, among these nodes: on its own node, or below a filter such as
    /// `throttle`.
    pub(super) fn of(disk: &BlockDisk, nodes: &Value) -> Self {
        let has = |node: &Value, key: &str, value: &str| {
            !value.is_empty() && node.get(key).and_then(Value::as_str) == Some(value)
        };
        let is_of_disk =
            |node: &&Value| has(node, "node-name", &disk.node) || has(node, "file", &disk.file);
        let list = |value: Option<&Value>| -> Vec<Value> {
            value.and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let name = |row: &Value| {
            let name = row.get("name")?.as_str()?;
            // Jobs have bitmaps without a name.
            (!name.is_empty()).then(|| name.to_owned())
        };
        let mut found = Self::default();
        let add = |to: &mut Vec<String>, name: Option<String>| {
            to.extend(name.filter(|name| !to.contains(name)));
        };
        for node in nodes.as_array().into_iter().flatten().filter(is_of_disk) {
            let image = node.get("image").and_then(|image| image.get("snapshots"));
            for row in list(image) {
                add(&mut found.snapshots, name(&row));
            }
            for row in list(node.get("dirty-bitmaps")) {
                if row.get("persistent").and_then(Value::as_bool) != Some(true) {
                    add(&mut found.in_memory, name(&row));
                }
                add(&mut found.bitmaps, name(&row));
            }
        }
        found
    }
}

/// What a disk has, for people.
pub(super) fn list(what: &str, names: &[String], disk: &str) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
    format!("the {what} {} of the disk {disk}", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_and_bitmaps_are_found_also_below_a_filter() {
        let disk = BlockDisk {
            node: "limits".into(),
            file: "/a.qcow2".into(),
            ..BlockDisk::default()
        };
        let nodes = json!([
            { "node-name": "limits", "file": "/a.qcow2", "image": {},
              "dirty-bitmaps": [{ "name": "b1", "persistent": false }, { "recording": true }] },
            { "node-name": "format", "file": "/a.qcow2",
              "image": { "snapshots": [{ "name": "s1", "id": "1" }, { "name": "s2" }] },
              "dirty-bitmaps": [{ "name": "b0", "persistent": true }] },
            { "node-name": "other", "file": "/b.qcow2",
              "image": { "snapshots": [{ "name": "of b" }] } },
            { "node-name": "", "file": "" },
        ]);
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        let found = LeftBehind::of(&disk, &nodes);
        assert_eq!(found.snapshots, names(&["s1", "s2"]));
        assert_eq!(found.bitmaps, names(&["b1", "b0"]));
        assert_eq!(found.in_memory, names(&["b1"]));
        let other = BlockDisk::default();
        assert_eq!(LeftBehind::of(&other, &nodes), LeftBehind::default());
    }
}
