//! What an image holds besides the content of the disk: internal snapshots and dirty bitmaps. A
//! copy of the disk does not have them.

use serde_json::{Value, json};

use super::list::BlockDisk;
use crate::disks::image_file;
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
    pub(super) fn of_disk(disk: &BlockDisk, nodes: &Value) -> Self {
        let text = |node: &Value, key: &str| {
            let text = node.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let is_it = |found: &str, wanted: &str| !wanted.is_empty() && found == wanted;
        // QEMU describes the file of a filter by all options below.
        let file = image_file(&disk.file);
        let is_of_disk = |node: &&Value| {
            is_it(&text(node, "node-name"), &disk.node)
                || is_it(&image_file(&text(node, "file")), &file)
        };
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

    /// As QEMU reports a node `throttle` above one `qcow2`.
    #[test]
    fn snapshots_and_bitmaps_are_found_also_below_a_filter() {
        let below = json!({
            "throttle-group": "g", "driver": "throttle",
            "file": { "driver": "qcow2", "file": { "driver": "file", "filename": "/a.qcow2" } },
        });
        let filter = format!("json:{below}");
        let disk = BlockDisk {
            node: "limits".into(),
            file: filter.clone(),
            ..BlockDisk::default()
        };
        let nodes = json!([
            { "node-name": "limits", "file": filter, "image": {},
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
        let found = LeftBehind::of_disk(&disk, &nodes);
        assert_eq!(found.snapshots, names(&["s1", "s2"]));
        assert_eq!(found.bitmaps, names(&["b1", "b0"]));
        assert_eq!(found.in_memory, names(&["b1"]));
        let other = BlockDisk::default();
        assert_eq!(LeftBehind::of_disk(&other, &nodes), LeftBehind::default());
    }
}
