//! The disks of a machine whose monitor is not available: by its command line, and the files that
//! it has open.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use hikkoshi_linux::Process;
use hikkoshi_wire::MAX_BACKING;
use serde_json::{Map, Value};

use crate::destination::storage_daemon::ServedDisk;
use crate::disks::{BlockDisk, ImageFile, is_cd};
use crate::process::options::{keys, started_options};

/// The most layers of an image, such as a format on a file.
const MAX_LAYERS: usize = 16;

/// The beginning of a qcow2 image (docs/interop/qcow2.txt of QEMU).
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// Of its incompatible features, which version 3 has: its data is in a file that it names.
const EXTERNAL_DATA: u64 = 1 << 2;

/// Drivers of nodes that pass a disk on as it is.
const FILTERS: [&str; 6] = [
    "blkdebug",
    "blklogwrites",
    "compress",
    "copy-on-read",
    "preallocate",
    "throttle",
];

/// Drivers whose images have the name of a backing file, if no option has it; also that of an image
/// whose format is not said.
const WITH_BACKING: [&str; 6] = ["", "parallels", "qcow", "qcow2", "qed", "vmdk"];

/// A disk of the machine.
#[derive(Debug)]
pub(in crate::destination) struct PipedDisk {
    pub(in crate::destination) disk: BlockDisk,
    /// The file of its image, if that was found.
    pub(in crate::destination) image: Option<ImageFile>,
    /// Those of the images below.
    pub(in crate::destination) below: Vec<Option<ImageFile>>,
    /// Its size, if that is known.
    pub(in crate::destination) bytes: Option<u64>,
    /// The options of its image, and of what that consists of.
    options: Value,
}

impl PipedDisk {
    /// The disk as another program opens it, by this name.
    ///
    /// # Errors
    ///
    /// Why no other program should; for people.
    pub(in crate::destination) fn served(&self, name: String) -> Result<ServedDisk, &'static str> {
        let image = self
            .image
            .as_ref()
            .ok_or("its image is not a file or device of this host")?;
        if self.disk.encrypted {
            return Err("its image is encrypted, and libvirt has the key");
        }
        if self.disk.images.len() != 1 {
            return Err("its image has backing files, or may have");
        }
        if self.has_data_file(image) {
            return Err("the data of its image is in another file");
        }
        let mut options = self.options.clone();
        let mut lowest = &mut options;
        while lowest.get("file").is_some_and(Value::is_object) {
            lowest = &mut lowest["file"];
        }
        if !matches!(lowest["driver"].as_str(), Some("file" | "host_device")) {
            return Err("its image is not a file or device of this host");
        }
        if self.bytes.is_none() {
            return Err(
                "its size is not known: it is neither the whole of a raw nor of a qcow2 image",
            );
        }
        lowest["filename"] = image.path().into();
        // It is written to, from the beginning.
        lowest["auto-read-only"] = false.into();
        Ok(ServedDisk { options, name })
    }

    /// Whether another file has the data of its image, which would be opened by its name.
    fn has_data_file(&self, image: &ImageFile) -> bool {
        let mut layers = std::iter::successors(Some(&self.options), |layer| layer.get("file"));
        layers.any(|layer| layer.get("data-file").is_some())
            || (self.disk.driver == "qcow2" && names_data_file(image))
    }
}

/// The disks of the machine, as its owner has started it. What cannot be found out is missing.
///
/// # Errors
///
/// Its command line cannot be read.
pub(in crate::destination) fn list(process: &Process) -> io::Result<Vec<PipedDisk>> {
    let options = started_options(process)?;
    let options = options.iter().map(|(name, value)| (&**name, &**value));
    Ok(found(process.pid(), options))
}

/// The disks that these options, with their values, make in QEMU's process `pid`.
fn found<'a>(pid: u32, options: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<PipedDisk> {
    let found = of_options(options).into_iter().map(|found| {
        let StartedDisk {
            disk,
            is_whole,
            options,
        } = found;
        let file = |name: &String| ImageFile::of_process_file(pid, name);
        let image = file(&disk.file);
        let bytes = image.as_ref().filter(|_| is_whole);
        PipedDisk {
            bytes: bytes.and_then(|image| size(&disk.driver, image)),
            below: disk.images.iter().skip(1).map(file).collect(),
            image,
            disk,
            options,
        }
    });
    found.collect()
}

type Options = Map<String, Value>;

/// A disk that options make.
struct StartedDisk {
    disk: BlockDisk,
    /// Whether it is the whole of its file.
    is_whole: bool,
    /// Those of its image.
    options: Value,
}

/// The disks that these options make.
fn of_options<'a>(options: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<StartedDisk> {
    let mut nodes = HashMap::new();
    let (mut devices, mut drives) = (Vec::new(), Vec::new());
    for (name, value) in options {
        // libvirt passes most as JSON (from 7.0 on, with QEMU 6.2 and later). Its user can add
        // others.
        let Some(options) = keys(value, "driver") else {
            continue;
        };
        match name {
            "blockdev" => {
                if let Some(name) = text(&options, "node-name") {
                    nodes.insert(name.to_owned(), options);
                }
            }
            "device" => devices.push(options),
            "drive" => drives.push(options),
            _ => {}
        }
    }
    let mut disks = Vec::new();
    for device in &devices {
        let Some(name) = text(device, "drive") else {
            continue;
        };
        let is_it = |drive: &&Options| text(drive, "id") == Some(name);
        if let Some(drive) = drives.iter().find(is_it) {
            disks.push(of_drive(Some(device), drive, &nodes));
        } else if let Some(node) = nodes.get(name) {
            disks.push(disk(Some(device), node, &nodes));
        }
    }
    // The others have a device by themselves. Flash memory is not compared by its image.
    let has_device = |drive: &&Options| {
        let interface = text(drive, "if").unwrap_or_default();
        !matches!(interface, "none" | "pflash")
    };
    let others = drives.iter().filter(has_device);
    disks.extend(others.map(|drive| of_drive(None, drive, &nodes)));
    disks
}

fn text<'a>(options: &'a Options, key: &str) -> Option<&'a str> {
    options.get(key).and_then(Value::as_str)
}

fn is_on(options: &Options, key: &str) -> bool {
    match options.get(key) {
        Some(Value::Bool(value)) => *value,
        Some(Value::String(value)) => matches!(&**value, "on" | "true" | "yes" | "y"),
        _ => false,
    }
}

/// The disk of a `-drive`.
fn of_drive(
    device: Option<&Options>,
    drive: &Options,
    nodes: &HashMap<String, Options>,
) -> StartedDisk {
    let is_cd = text(drive, "media") == Some("cdrom");
    let mut node = drive.clone();
    if let Some(file) = node.get_mut("file").filter(|file| file.is_string()) {
        *file = serde_json::json!({ "driver": "file", "filename": file.take() });
    }
    if let Some(format) = drive.get("format") {
        node.insert("driver".to_owned(), format.clone());
    }
    let mut found = disk(device, &node, nodes);
    let disk = &mut found.disk;
    disk.drive = text(drive, "id").unwrap_or_default().to_owned();
    disk.node = String::new();
    disk.removable |= is_cd;
    disk.read_only |= is_cd || is_on(drive, "readonly");
    // They are not those of a block node.
    found.options = Value::Null;
    found
}

/// The options of an image with these layers, as one value without names of nodes.
fn nested(layers: &[&Options]) -> Value {
    layers.iter().rev().fold(Value::Null, |below, layer| {
        let mut options = (*layer).clone();
        options.remove("node-name");
        if !below.is_null() {
            options.insert("file".to_owned(), below);
        }
        Value::Object(options)
    })
}

/// The layer of an image below this one: another node, or nested options.
fn below<'a>(node: &'a Options, nodes: &'a HashMap<String, Options>) -> Option<&'a Options> {
    match node.get("file")? {
        Value::String(name) => nodes.get(name),
        Value::Object(options) => Some(options),
        _ => None,
    }
}

/// The options of a node and of those below, down to the one that reaches the image.
fn layers<'a>(node: &'a Options, nodes: &'a HashMap<String, Options>) -> Vec<&'a Options> {
    let layers = std::iter::successors(Some(node), |node| below(node, nodes));
    layers.take(MAX_LAYERS).collect()
}

/// The file of an image with these layers.
fn file_of(layers: &[&Options]) -> String {
    let last = layers.last().copied();
    match last.and_then(|last| text(last, "filename")) {
        Some(file) => file.to_owned(),
        None => format!("json:{}", Value::Object(last.cloned().unwrap_or_default())),
    }
}

/// The files of the image that this node reaches, and of those below. `None`: not all are known.
fn images(node: &Options, nodes: &HashMap<String, Options>) -> Option<Vec<String>> {
    let (mut node, mut found) = (node, Vec::new());
    while found.len() <= MAX_BACKING {
        let layers = layers(node, nodes);
        found.push(file_of(&layers));
        // libvirt says it of each image, also that there is none.
        let backing = layers.iter().find_map(|layer| layer.get("backing"));
        let drivers = layers.iter().map(|layer| text(layer, "driver"));
        let mut drivers = drivers.map(Option::unwrap_or_default);
        node = match backing {
            Some(Value::String(name)) => nodes.get(name)?,
            Some(Value::Object(options)) => options,
            Some(Value::Null) => return Some(found),
            None if drivers.any(|driver| WITH_BACKING.contains(&driver)) => return None,
            None => return Some(found),
            Some(_) => return None,
        };
    }
    None
}

/// The disk that a device has with this node.
fn disk(device: Option<&Options>, node: &Options, nodes: &HashMap<String, Options>) -> StartedDisk {
    let layers = layers(node, nodes);
    let driver = |node: &Options| text(node, "driver").unwrap_or_default().to_owned();
    let is_filter = |node: &&Options| FILTERS.contains(&&*driver(node));
    let below_filters = layers.iter().position(|node| !is_filter(node));
    let image = layers.get(below_filters.unwrap_or(0)..).unwrap_or_default();
    let format = image.first().map_or(node, |format| *format);
    let id = device.and_then(|device| text(device, "id"));
    let kind = device.and_then(|device| text(device, "driver"));
    let driver = driver(format);
    let is_cd = kind.is_some_and(is_cd);
    let found = BlockDisk {
        device: id.map_or_else(String::new, |id| format!("/machine/peripheral/{id}")),
        node: text(node, "node-name").unwrap_or_default().to_owned(),
        file: file_of(&layers),
        images: images(node, nodes).unwrap_or_default(),
        read_only: is_cd || is_on(node, "read-only"),
        removable: is_cd,
        encrypted: format.get("encrypt").is_some() || driver == "luks",
        driver,
        ..BlockDisk::default()
    };
    let is_part = |node: &&Options| node.contains_key("offset") || node.contains_key("size");
    StartedDisk {
        disk: found,
        is_whole: !layers.iter().any(is_part),
        options: nested(image),
    }
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

/// Whether the head of a qcow2 image says that another file has its data.
fn names_data_file(image: &ImageFile) -> bool {
    let mut head = [0; 80];
    let read = image.open().and_then(|mut file| file.read_exact(&mut head));
    // That of version 2 is shorter, and has no features.
    let (version, features) = (&head[4..8], head.last_chunk().copied().unwrap_or_default());
    read.is_ok()
        && version >= &3_u32.to_be_bytes()[..]
        && u64::from_be_bytes(features) & EXTERNAL_DATA != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            .map(|StartedDisk { disk, .. }| {
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
            ("blockdev", "{"),
            ("blockdev", r#"{"node-name":"a","file":"a"}"#),
            ("device", r#"{"drive":"a"}"#),
        ];
        assert_eq!(of_options(odd.into_iter()).len(), 1, "its own layer");
    }

    /// Options that libvirt's user has added, and those of an SD card.
    #[test]
    fn disks_by_keys_and_values_are_found() {
        let line = [
            ("blockdev", "file,node-name=s,filename=/a,,b.raw"),
            ("blockdev", "driver=raw,node-name=f,file=s,read-only=on"),
            ("device", "virtio-blk-pci,drive=f,id=vda"),
            (
                "blockdev",
                "qcow2,node-name=n,file.driver=file,file.filename=/n.qcow2",
            ),
            ("device", r#"{"driver":"scsi-hd","drive":"n","id":"sda"}"#),
            ("drive", "if=none,id=d0,file=/d.qcow2,format=qcow2"),
            ("device", "ide-hd,drive=d0,id=hda"),
            (
                "drive",
                "if=none,id=cd,file.driver=file,file.filename=/cd.iso,media=cdrom",
            ),
            ("device", "ide-cd,drive=cd"),
            ("drive", "file=/sd.raw,if=sd,id=sd,format=raw,readonly=on"),
            ("drive", "file=/other.raw,if=virtio,format=raw"),
            ("drive", "file=/code.fd,if=pflash,id=flash,format=raw"),
        ];
        let found = of_options(line.into_iter());
        let parts: Vec<_> = found
            .iter()
            .map(|StartedDisk { disk, .. }| {
                (disk.label(), &*disk.driver, &*disk.file, disk.read_only)
            })
            .collect();
        let expected = [
            ("vda", "raw", "/a,b.raw", true),
            ("sda", "qcow2", "/n.qcow2", false),
            ("hda", "qcow2", "/d.qcow2", false),
            ("cd", "", "/cd.iso", true),
            ("sd", "raw", "/sd.raw", true),
            ("", "raw", "/other.raw", false),
        ];
        assert_eq!(parts, expected);
        assert_eq!(
            (&*found[2].disk.drive, found[3].disk.removable),
            ("d0", true)
        );
    }

    #[test]
    fn a_disk_below_a_filter_or_in_a_part_of_a_file_is_what_it_is() {
        let storage = r#"{"node-name":"s","driver":"file","filename":"/a"}"#;
        let of = |nodes: &[&str]| {
            let nodes = nodes.iter().map(|node| ("blockdev", *node));
            let device = ("device", "virtio-blk-pci,drive=top,id=vda");
            let all = nodes.chain([("blockdev", storage), device]);
            let StartedDisk { disk, is_whole, .. } = of_options(all).remove(0);
            (disk.driver, disk.file, is_whole)
        };
        let filtered = [
            "throttle,node-name=top,throttle-group=g,file=f",
            "qcow2,node-name=f,file=s",
        ];
        assert_eq!(of(&filtered), ("qcow2".into(), "/a".into(), true));
        let part = r#"{"node-name":"top","driver":"raw","file":"s","offset":1048576}"#;
        assert_eq!(of(&[part]), ("raw".into(), "/a".into(), false));
        let slice = [
            r#"{"node-name":"top","driver":"qcow2","file":"slice"}"#,
            r#"{"node-name":"slice","driver":"raw","file":"s","size":1048576}"#,
        ];
        assert_eq!(of(&slice), ("qcow2".into(), "/a".into(), false));
    }

    #[test]
    fn an_image_is_opened_by_another_program_as_qemu_has_opened_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.qcow2");
        let mut head = [0; 80];
        head[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        std::fs::write(&path, head).unwrap();
        let open = std::fs::File::options().write(true).open(&path).unwrap();
        let path = path.to_str().unwrap();
        let storage = json!({ "driver": "file", "filename": path, "node-name": "s",
            "auto-read-only": true, "discard": "unmap" });
        let of = |format: Value, storage: &Value| {
            let nodes = [storage.to_string(), format.to_string()];
            let nodes = nodes.iter().map(|node| ("blockdev", node.as_str()));
            let device = (
                "device",
                r#"{"driver":"virtio-blk-pci","drive":"f","id":"vda"}"#,
            );
            let found = found(std::process::id(), nodes.chain([device])).remove(0);
            found.served("hikkoshi-disk-0".to_owned())
        };
        let qcow2 = json!({ "node-name": "f", "driver": "qcow2", "file": "s", "backing": null,
            "read-only": false });
        let served = of(qcow2.clone(), &storage).unwrap();
        let file = served.options["file"]["filename"].as_str().unwrap();
        assert!(
            file.starts_with(&format!("/proc/{}/fd/", std::process::id())),
            "{file}"
        );
        assert_eq!(std::fs::read_link(file).unwrap().to_str(), Some(path));
        let expected = json!({ "driver": "qcow2", "backing": null, "read-only": false,
            "file": { "driver": "file", "filename": file, "auto-read-only": false,
                "discard": "unmap" } });
        assert_eq!(served.options, expected);
        let filtered = json!({ "node-name": "f", "driver": "throttle", "throttle-group": "g",
            "file": { "driver": "raw", "file": "s" } });
        assert_eq!(of(filtered, &storage).unwrap().options["driver"], "raw");
        let why = |format: Value, storage: &Value| of(format, storage).unwrap_err();
        let mut other = qcow2.clone();
        other["backing"] = "s".into();
        assert!(why(other.clone(), &storage).contains("backing"));
        other.as_object_mut().unwrap().remove("backing");
        assert!(
            why(other, &storage).contains("backing"),
            "its head may name one"
        );
        let mut luks = qcow2.clone();
        luks["encrypt"] = json!({ "format": "luks", "key-secret": "k" });
        assert!(why(luks, &storage).contains("encrypted"));
        let remote = json!({ "driver": "rbd", "pool": "p", "image": "i", "node-name": "s" });
        assert!(why(qcow2.clone(), &remote).contains("not a file"));
        let part = json!({ "node-name": "f", "driver": "raw", "file": "s", "size": 512 });
        assert!(why(part, &storage).contains("size is not known"));
        let mut separate = qcow2.clone();
        separate["data-file"] = "d".into();
        assert!(why(separate, &storage).contains("in another file"));
        head[79] = 4;
        std::os::unix::fs::FileExt::write_all_at(&open, &head, 0).unwrap();
        assert!(why(qcow2.clone(), &storage).contains("in another file"));
        head[7] = 2;
        std::os::unix::fs::FileExt::write_all_at(&open, &head, 0).unwrap();
        of(qcow2, &storage).expect("version 2 has no such feature");
    }

    #[test]
    fn a_domain_with_another_disk_is_refused() {
        use crate::destination::compare_disks::compare;
        use crate::disks::describe;
        use hikkoshi_wire::{Disk, DiskPlan};
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes| {
            let path = folder.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(bytes).unwrap();
            (file, path.to_str().unwrap().to_owned())
        };
        let (_a, same) = file("a", 1 << 20);
        let (_b, another) = file("b", 1 << 20);
        let (_c, longer) = file("c", 2 << 20);
        let domain = |image: &str| {
            let storage = format!(r#"{{"driver":"file","node-name":"s","filename":"{image}"}}"#);
            let line = [
                ("blockdev", &*storage),
                ("blockdev", r#"{"node-name":"f","driver":"raw","file":"s"}"#),
                (
                    "device",
                    r#"{"driver":"virtio-blk-pci","drive":"f","id":"vda"}"#,
                ),
            ];
            let disks = found(std::process::id(), line.into_iter()).into_iter();
            let disks = disks.map(|found| Disk {
                bytes: found.bytes,
                ..describe(
                    &found.disk,
                    found.image.as_ref(),
                    &found.below,
                    DiskPlan::Same,
                )
            });
            disks.collect::<Vec<_>>()
        };
        let refused = |image: &str| {
            compare(&domain(&same), &domain(image), false)
                .refused
                .join("")
        };
        assert_eq!(refused(&same), "");
        assert!(
            refused(&another).contains("not known whether"),
            "{}",
            refused(&another)
        );
        assert!(refused(&longer).contains("2 MiB"), "{}", refused(&longer));
        let missing = compare(&domain(&same), &[], false).refused.join("");
        assert!(missing.contains("no disk with a medium"), "{missing}");
    }

    #[test]
    fn the_images_below_are_found_if_the_command_line_has_them() {
        let file = |name: &str| {
            let options = serde_json::json!({
                "driver": "file", "filename": format!("/{name}"), "node-name": format!("{name}-file"),
            });
            options.to_string()
        };
        let format = |name: &str, driver: &str, more: Value| {
            let mut options = serde_json::json!({
                "driver": driver, "file": format!("{name}-file"), "node-name": name,
            });
            if let (Some(options), Value::Object(more)) = (options.as_object_mut(), more) {
                options.extend(more);
            }
            options.to_string()
        };
        let backing = |of: Value| serde_json::json!({ "backing": of });
        let images = |top: Value, middle: Value| {
            let nodes = [
                file("top"),
                file("middle"),
                file("base"),
                format("top", "qcow2", top),
                format("middle", "qcow2", middle),
                format("base", "raw", Value::Null),
                r#"{"driver":"copy-on-read","file":"top","node-name":"filter"}"#.to_owned(),
            ];
            let device = r#"{"driver":"virtio-blk-pci","drive":"filter","id":"vda"}"#;
            let nodes = nodes.iter().map(|node| ("blockdev", &**node));
            let found = of_options(nodes.chain([("device", device)]));
            assert_eq!((found.len(), &*found[0].disk.file), (1, "/top"));
            found[0].disk.images.clone()
        };
        let [to_middle, to_base] = ["middle", "base"].map(|name| backing(name.into()));
        let all = images(to_middle.clone(), to_base.clone());
        assert_eq!(all, ["/top", "/middle", "/base"]);
        assert_eq!(images(backing(Value::Null), to_base), ["/top"]);
        // QEMU finds it in the image, or it is not among the nodes, or it goes round.
        for (top, middle) in [
            (Value::Null, Value::Null),
            (to_middle.clone(), Value::Null),
            (backing("none".into()), Value::Null),
            (to_middle.clone(), to_middle),
        ] {
            assert_eq!(images(top.clone(), middle), [""; 0], "{top}");
        }
    }

    #[test]
    fn the_size_of_an_image_is_read_from_it() {
        let of = |content: &[u8], driver: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), content).unwrap();
            let image =
                ImageFile::of_process_file(std::process::id(), file.path().to_str().unwrap());
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
