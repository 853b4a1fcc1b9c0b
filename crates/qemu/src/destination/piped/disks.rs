//! The disks of a machine whose monitor is not available: by its command line, and the files that
//! it has open.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

use hikkoshi_linux::Process;
use serde_json::{Map, Value};

use crate::command_line::started_options;
use crate::disks::{BlockDisk, ImageFile};

/// The most layers of an image, such as a format on a file.
const MAX_LAYERS: usize = 16;

/// The beginning of a qcow2 image (docs/interop/qcow2.txt of QEMU).
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// A disk, the file of its image, if that was found, and its size, if that is known.
pub(in crate::destination) type PipedDisk = (BlockDisk, Option<ImageFile>, Option<u64>);

/// The disks of the machine, as its owner has started it. What cannot be found out is missing.
pub(in crate::destination) fn list(process: &Process) -> Vec<PipedDisk> {
    let options = started_options(process).unwrap_or_default();
    let options = options.iter().map(|(name, value)| (&**name, &**value));
    let found = of_options(options).into_iter().map(|disk| {
        let image = ImageFile::of(process.pid(), &disk.file);
        let bytes = image.as_ref().and_then(|image| size(&disk.driver, image));
        (disk, image, bytes)
    });
    found.collect()
}

/// The disks that these options, with their values, make.
fn of_options<'a>(options: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<BlockDisk> {
    let json = |value: &str| match serde_json::from_str(value) {
        Ok(Value::Object(options)) => Some(options),
        _ => None,
    };
    let (mut nodes, mut devices) = (HashMap::new(), Vec::new());
    for (name, value) in options {
        // libvirt passes both as JSON (from 7.0 on, with QEMU 6.2 and later).
        let Some(options) = json(value) else {
            continue;
        };
        match name {
            "blockdev" => {
                if let Some(name) = text(&options, "node-name") {
                    nodes.insert(name.to_owned(), options);
                }
            }
            "device" => devices.push(options),
            _ => {}
        }
    }
    let disk = |device: &Map<String, Value>| disk(device, &nodes);
    devices.iter().filter_map(disk).collect()
}

fn text<'a>(options: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    options.get(key).and_then(Value::as_str)
}

fn disk(
    device: &Map<String, Value>,
    nodes: &HashMap<String, Map<String, Value>>,
) -> Option<BlockDisk> {
    let name = text(device, "drive")?;
    let node = nodes.get(name)?;
    // Down to the one that reaches the image.
    let mut last = node;
    for _ in 0..MAX_LAYERS {
        match text(last, "file").and_then(|below| nodes.get(below)) {
            Some(below) => last = below,
            None => break,
        }
    }
    let file = match text(last, "filename") {
        Some(file) => file.to_owned(),
        None => format!("json:{}", Value::Object(last.clone())),
    };
    let kind = text(device, "driver").unwrap_or_default();
    Some(BlockDisk {
        device: format!(
            "/machine/peripheral/{}",
            text(device, "id").unwrap_or_default()
        ),
        node: name.to_owned(),
        driver: text(node, "driver").unwrap_or_default().to_owned(),
        file,
        read_only: node.get("read-only") == Some(&Value::Bool(true)),
        removable: kind.ends_with("-cd"),
        encrypted: node.get("encrypt").is_some() || text(node, "driver") == Some("luks"),
        ..BlockDisk::default()
    })
}

/// The size of an image as the guest sees it.
fn size(driver: &str, image: &ImageFile) -> Option<u64> {
    let mut file = image.open().ok()?;
    match driver {
        // QEMU rounds up to whole sectors.
        "raw" | "file" | "host_device" | "host_cdrom" => file
            .seek(SeekFrom::End(0))
            .ok()?
            .checked_next_multiple_of(512),
        "qcow2" => {
            let mut head = [0; 32];
            file.read_exact(&mut head).ok()?;
            let (magic, rest) = head.split_first_chunk()?;
            let bytes = rest.last_chunk()?;
            (*magic == QCOW2_MAGIC).then(|| u64::from_be_bytes(*bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libvirt 9.0 starts QEMU.
    const LINE: [(&str, &str); 8] = [
        (
            "machine",
            "pc-q35-7.2,usb=off,pflash0=libvirt-pflash0-format",
        ),
        (
            "blockdev",
            r#"{"driver":"file","filename":"/a.raw","node-name":"libvirt-3-storage",
                "auto-read-only":true,"discard":"unmap"}"#,
        ),
        (
            "blockdev",
            r#"{"node-name":"libvirt-3-format","read-only":false,"driver":"qcow2",
                "file":"libvirt-3-storage"}"#,
        ),
        (
            "device",
            r#"{"driver":"virtio-blk-pci","bus":"pci.3","drive":"libvirt-3-format",
                "id":"virtio-disk0","bootindex":1}"#,
        ),
        (
            "blockdev",
            r#"{"driver":"rbd","pool":"p","image":"i","server":[{"host":"mon","port":"6789"}],
                "node-name":"libvirt-2-storage"}"#,
        ),
        (
            "device",
            r#"{"driver":"scsi-hd","drive":"libvirt-2-storage","id":"scsi0-0-0-0"}"#,
        ),
        (
            "blockdev",
            r#"{"driver":"file","filename":"/cd.iso","node-name":"libvirt-1-storage",
                "read-only":true}"#,
        ),
        (
            "device",
            r#"{"driver":"ide-cd","drive":"libvirt-1-storage","id":"sata0-0-0"}"#,
        ),
    ];

    #[test]
    fn the_disks_of_a_domain_are_found_on_its_command_line() {
        let found = of_options(LINE.into_iter());
        let parts: Vec<_> = found
            .iter()
            .map(|disk| {
                (
                    disk.label(),
                    &*disk.driver,
                    &*disk.file,
                    disk.read_only,
                    disk.removable,
                )
            })
            .collect();
        assert_eq!(parts[0], ("virtio-disk0", "qcow2", "/a.raw", false, false));
        assert_eq!(parts[2], ("sata0-0-0", "file", "/cd.iso", true, true));
        assert_eq!(parts[1].0, "scsi0-0-0-0");
        assert!(parts[1].2.starts_with("json:{"), "{parts:?}");
        assert_eq!(parts.len(), 3);
        let odd = [
            ("device", r#"{"driver":"virtio-blk-pci","drive":"none"}"#),
            ("device", "virtio-blk-pci,drive=d"),
            ("blockdev", r#"{"node-name":"a","file":"a"}"#),
            ("device", r#"{"drive":"a"}"#),
        ];
        assert_eq!(of_options(odd.into_iter()).len(), 1, "its own layer");
    }

    #[test]
    fn the_size_of_an_image_is_read_from_it() {
        let of = |content: &[u8], driver: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), content).unwrap();
            let image = ImageFile::of(std::process::id(), file.path().to_str().unwrap());
            size(driver, &image.unwrap())
        };
        let mut head = [0; 72];
        head[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        head[24..32].copy_from_slice(&(100u64 << 20).to_be_bytes());
        assert_eq!(of(&head, "qcow2"), Some(100 << 20));
        assert_eq!(of(&head, "raw"), Some(512));
        assert_eq!(of(&head, "vmdk"), None);
        assert_eq!(of(&head[..20], "qcow2"), None);
        assert_eq!(of(&[0; 72], "qcow2"), None);
    }
}
