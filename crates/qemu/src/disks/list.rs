//! The disks of a QEMU.

use serde_json::{Value, json};

use crate::device_tree::{DrivePlace, drive_places};
use crate::qmp::{Client, QmpError, qom};

/// Where QEMU has the devices with an id.
const NAMED_DEVICES: &str = "/machine/peripheral/";

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
    /// The driver of that: usually the format of its image.
    pub(crate) driver: String,
    /// Its file, as QEMU describes it.
    pub(crate) file: String,
    /// The files of its image and of the backing images below, as QEMU describes them. Empty: they
    /// are not known.
    pub(crate) images: Vec<String>,
    /// Whether the guest cannot write to it.
    pub(crate) read_only: bool,
    /// Whether its medium can be changed.
    pub(crate) removable: bool,
    /// Whether its image is encrypted.
    pub(crate) encrypted: bool,
    /// The device's buses and its addresses on them, as the guest sees them. Empty: not known, or
    /// it has none.
    pub(crate) place: String,
}

/// The id of a device that QEMU names so: by its path, or by its id alone. `None`: it has none.
pub(crate) fn device_id(device: &str) -> Option<&str> {
    let path = device.strip_prefix(NAMED_DEVICES);
    let path = path.or((!device.starts_with('/')).then_some(device))?;
    // A virtio disk is the child `virtio-backend` of the device.
    let id = path.split_once('/').map_or(path, |(id, _)| id);
    (!id.is_empty()).then_some(id)
}

/// The file of a node's description: options as `json:` are searched for it.
pub(crate) fn image_file(described: &str) -> String {
    let Some(options) = described.strip_prefix("json:") else {
        return described.to_owned();
    };
    let options = serde_json::from_str::<Value>(options).unwrap_or_default();
    let mut node = Some(&options);
    while let Some(inner) = node {
        if let Some(file) = inner.get("filename").and_then(Value::as_str) {
            return file.to_owned();
        }
        node = inner.get("file");
    }
    described.to_owned()
}

/// Whether this is the name of a file, and not of a network disk, or options.
pub(crate) fn is_file(name: &str) -> bool {
    name.starts_with('/') || !name.contains(':')
}

/// Whether a device of this type is a CD drive, to which no guest can write.
pub(crate) fn is_cd(kind: &str) -> bool {
    kind.ends_with("-cd")
}

impl BlockDisk {
    /// The disk of a row of `query-block`. `None`: no medium, or no device.
    fn from_row(row: &Value) -> Option<Self> {
        let text = |row: &Value, key: &str| {
            let text = row.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let inserted = row.get("inserted")?;
        let device = text(row, "qdev");
        let image = inserted.get("image")?;
        let bytes = image.get("virtual-size")?.as_u64()?;
        let is_on = |row: &Value, key| row.get(key).and_then(Value::as_bool) == Some(true);
        let images = std::iter::successors(Some(image), |image| image.get("backing-image"));
        let mut images: Vec<_> = images.map(|image| text(image, "filename")).collect();
        // QEMU lists filters, such as `throttle`, as if they were images.
        images.dedup_by_key(|image| image_file(image));
        (!device.is_empty()).then(|| Self {
            device,
            drive: text(row, "device"),
            node: text(inserted, "node-name"),
            bytes,
            driver: text(inserted, "drv"),
            file: text(inserted, "file"),
            images,
            read_only: is_on(inserted, "ro"),
            removable: is_on(row, "removable"),
            encrypted: is_on(inserted, "encrypted") || is_on(image, "encrypted"),
            place: String::new(),
        })
    }

    /// Where the guest sees it, if that is one place among these.
    fn place_among(&self, places: &[DrivePlace]) -> Option<String> {
        let name = match self.drive.is_empty() {
            true => &self.node,
            false => &self.drive,
        };
        let of_drive = || places.iter().filter(|place| place.drive == *name);
        // Several devices can use one block node.
        let of_device = || of_drive().filter(|place| Some(&*place.id) == self.id());
        let mut found = match of_drive().count() {
            1 => of_drive().collect::<Vec<_>>(),
            _ => of_device().collect(),
        };
        let only = found.pop().filter(|_| found.is_empty())?;
        Some(only.place.clone())
    }

    /// The device's path in QEMU's object tree.
    pub(crate) fn path(&self) -> String {
        match self.device.starts_with('/') {
            true => self.device.clone(),
            false => format!("{NAMED_DEVICES}{}", self.device),
        }
    }

    /// The device's id, if its owner gave it one.
    pub(crate) fn id(&self) -> Option<&str> {
        device_id(&self.device)
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
    let mut disks: Vec<_> = rows.iter().filter_map(BlockDisk::from_row).collect();
    if !disks.is_empty() {
        let places = drive_places(client)?;
        for disk in &mut disks {
            disk.place = disk.place_among(&places).unwrap_or_default();
            // QEMU may have its image open for writing.
            if disk.removable && !disk.read_only {
                let kind = qom::property(client, &disk.path(), "type")?;
                disk.read_only = kind.as_ref().and_then(Value::as_str).is_some_and(is_cd);
            }
        }
    }
    Ok(disks)
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
                "image": {
                    "virtual-size": 1048576,
                    "filename": r#"json:{"driver":"throttle","file":{"filename":"/disk.qcow2"}}"#,
                    "backing-image": {
                        "filename": "/disk.qcow2",
                        "backing-image": { "filename": "/base.raw" },
                    },
                },
            },
        });
        let disk = BlockDisk::from_row(&row).unwrap();
        let images: Vec<_> = disk.images.iter().map(|image| image_file(image)).collect();
        assert_eq!(images, ["/disk.qcow2", "/base.raw"], "without the filter");
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

    /// QEMU names a SCSI or IDE device with an id by that alone.
    #[test]
    fn a_device_with_an_id_has_it_by_each_of_its_names() {
        let disk = |device: &str| BlockDisk {
            device: device.into(),
            ..BlockDisk::default()
        };
        for (device, id, path) in [
            ("sda", Some("sda"), "/machine/peripheral/sda"),
            (
                "/machine/peripheral/vda/virtio-backend",
                Some("vda"),
                "/machine/peripheral/vda/virtio-backend",
            ),
            (
                "/machine/peripheral-anon/device[0]",
                None,
                "/machine/peripheral-anon/device[0]",
            ),
        ] {
            assert_eq!((disk(device).id(), &*disk(device).path()), (id, path));
        }
        assert_eq!(device_id(""), None);
    }

    #[test]
    fn the_place_of_a_disk_is_that_of_its_device() {
        let place = |drive: &str, id: &str, place: &str| DrivePlace {
            drive: drive.into(),
            id: id.into(),
            place: place.into(),
        };
        let places = [
            place("d0", "", "pci.0/04.0"),
            place("node1", "sda", "pci.0/05.0/0:0:0"),
            place("both", "sdb", "pci.0/05.0/0:0:1"),
            place("both", "sdc", "pci.0/05.0/0:0:2"),
        ];
        let of = |device: &str, drive: &str, node: &str| {
            let disk = BlockDisk {
                device: device.into(),
                drive: drive.into(),
                node: node.into(),
                ..BlockDisk::default()
            };
            disk.place_among(&places)
        };
        let named = "/machine/peripheral/vda/virtio-backend";
        assert_eq!(of(named, "d0", "#block1").as_deref(), Some("pci.0/04.0"));
        assert_eq!(of("sda", "", "node1").as_deref(), Some("pci.0/05.0/0:0:0"));
        assert_eq!(of("sdc", "", "both").as_deref(), Some("pci.0/05.0/0:0:2"));
        let anonymous = "/machine/peripheral-anon/device[0]";
        assert_eq!(of(anonymous, "", "both"), None, "one of two");
        assert_eq!(of(anonymous, "other", "node1"), None);
    }

    #[test]
    fn an_encrypted_image_is_recognised() {
        let row = |inserted: Value| json!({ "device": "d", "qdev": "vda", "inserted": inserted });
        for (inserted, expected) in [
            (json!({ "image": { "virtual-size": 1 } }), false),
            (
                json!({ "encrypted": true, "image": { "virtual-size": 1 } }),
                true,
            ),
            (
                json!({ "image": { "virtual-size": 1, "encrypted": true } }),
                true,
            ),
        ] {
            assert_eq!(
                BlockDisk::from_row(&row(inserted)).unwrap().encrypted,
                expected
            );
        }
    }

    #[test]
    fn without_a_medium_or_a_device_it_is_no_disk() {
        let inserted = json!({ "node-name": "n", "image": { "virtual-size": 1 } });
        for row in [
            json!({ "device": "floppy0", "qdev": "/machine/unattached/device[1]" }),
            json!({ "device": "spare", "inserted": inserted }),
        ] {
            assert_eq!(BlockDisk::from_row(&row), None, "{row}");
        }
    }
}
