//! The disks of a QEMU.

use serde_json::{Value, json};

use crate::qmp::{Client, QmpError};

/// A disk with a medium, that a device of the guest has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockDisk {
    /// The device's path in QEMU's object tree, or its id.
    pub(crate) device: String,
    /// The name of its `-drive`. May be empty.
    pub(crate) drive: String,
    /// Its block node.
    pub(crate) node: String,
    /// Its size as the guest sees it, in bytes.
    pub(crate) bytes: u64,
    /// Its file, as QEMU describes it.
    pub(crate) file: String,
    pub(crate) read_only: bool,
}

impl BlockDisk {
    /// The disk of a row of `query-block`. `None`: no medium, or no device.
    fn of(row: &Value) -> Option<Self> {
        let text = |row: &Value, key: &str| {
            let text = row.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let inserted = row.get("inserted")?;
        let device = text(row, "qdev");
        let bytes = inserted.get("image")?.get("virtual-size")?.as_u64()?;
        (!device.is_empty()).then(|| Self {
            device,
            drive: text(row, "device"),
            node: text(inserted, "node-name"),
            bytes,
            file: text(inserted, "file"),
            read_only: inserted.get("ro").and_then(Value::as_bool) == Some(true),
        })
    }

    /// The device's id, if its owner gave it one.
    pub(crate) fn id(&self) -> Option<&str> {
        let path = self.device.strip_prefix("/machine/peripheral/");
        let path = path.or((!self.device.starts_with('/')).then_some(&*self.device))?;
        // A virtio disk is the child `virtio-backend` of the device.
        Some(path.split_once('/').map_or(path, |(id, _)| id))
    }

    /// What it is called in messages: by its owner, if possible.
    pub(crate) fn label(&self) -> &str {
        match self.id() {
            Some(id) => id,
            None if !self.drive.is_empty() => &self.drive,
            None if !self.node.starts_with('#') => &self.node,
            None => &self.device,
        }
    }

    /// Whether `name` means it: the device's id or path, the name of the `-drive`, or the node's.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        !name.is_empty()
            && (self.id() == Some(name)
                || [&self.device, &self.drive, &self.node]
                    .iter()
                    .any(|known| *known == name))
    }

    /// Whether it is flash memory: QEMU writes its image from memory when the guest resumes.
    pub(crate) fn is_flash(&self) -> bool {
        self.device.starts_with("/machine/system.flash")
    }
}

/// The guest's disks with a medium.
pub(crate) fn list(client: &mut Client) -> Result<Vec<BlockDisk>, QmpError> {
    let answer = client.execute("query-block", json!({}))?;
    let rows = answer
        .as_array()
        .ok_or_else(|| QmpError::unexpected("query-block", "not a list"))?;
    Ok(rows.iter().filter_map(BlockDisk::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_names_that_its_owner_knows() {
        let row = json!({
            "device": "drive0", "qdev": "/machine/peripheral/vda/virtio-backend",
            "inserted": {
                "node-name": "#block123", "ro": false, "file": "/disk.qcow2",
                "image": { "virtual-size": 1048576 },
            },
        });
        let disk = BlockDisk::of(&row).unwrap();
        assert_eq!((disk.id(), disk.label()), (Some("vda"), "vda"));
        for name in [
            "vda",
            "drive0",
            "#block123",
            "/machine/peripheral/vda/virtio-backend",
        ] {
            assert!(disk.is_called(name), "{name}");
        }
        assert!(!disk.is_called("") && !disk.is_called("vdb"));
        let anonymous = BlockDisk {
            device: "/machine/peripheral-anon/device[0]/virtio-backend".into(),
            drive: String::new(),
            node: "disk0".into(),
            ..disk
        };
        assert_eq!((anonymous.id(), anonymous.label()), (None, "disk0"));
        assert!(!anonymous.is_called(""));
    }

    #[test]
    fn without_a_medium_or_a_device_it_is_no_disk() {
        let inserted = json!({ "node-name": "n", "image": { "virtual-size": 1 } });
        for row in [
            json!({ "device": "floppy0", "qdev": "/machine/unattached/device[1]" }),
            json!({ "device": "spare", "inserted": inserted }),
        ] {
            assert_eq!(BlockDisk::of(&row), None, "{row}");
        }
    }
}
