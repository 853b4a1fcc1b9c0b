//! Which disks are copied, and to which of the destination's; and what killed engines have left of
//! copies.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use error_reporter::Report;
use hikkoshi_engine::{DestinationDisks, DestinationGuest, SourceDisks, SourceGuest};
use hikkoshi_qemu::{AttachError, DiskSelection, QemuSource, Refusal};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{Program, Qemu, with_each};

const MIB: u64 = 1 << 20;

/// Images of 1 MiB with these names.
struct Images {
    folder: TempDir,
}

impl Images {
    fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(MIB).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A drive that no device has.
    fn drive(&self, image: &str, options: &str) -> String {
        let path = self.path(image);
        let options = match options {
            "" => String::new(),
            options => format!(",{options}"),
        };
        format!(
            "-drive if=none,format=raw,file={}{options} ",
            path.display()
        )
    }
}

fn copy(source: &mut QemuSource, named: &[&str], shared: &[&str]) -> Result<Vec<String>, String> {
    let names = |names: &[&str]| -> Vec<_> { names.iter().map(|&name| name.to_owned()).collect() };
    let selection = DiskSelection {
        copied: Some(names(named)),
        shared: (!shared.is_empty()).then(|| names(shared)),
        ..DiskSelection::default()
    };
    let chosen = source.choose_disks(&selection);
    chosen.map_err(|error| Report::new(error).to_string())
}

/// The images at the destination that the source's disks are copied to, in the order of these
/// images of the source; or why they are not.
fn counterparts(
    program: &Program,
    images: &Images,
    [here, there]: [&str; 2],
    order: &[&str],
) -> Result<Vec<String>, String> {
    let source = Qemu::usual(program, here);
    let destination = Qemu::usual(program, &format!("-incoming defer {there}"));
    let mut from = source.source();
    let mut to = destination.destination();
    copy(&mut from, &[], &[])?;
    let disks = from.offered();
    let rows = source.execute("query-block", json!({}));
    let of = |row: &serde_json::Value| {
        let file = row["inserted"]["file"].as_str()?;
        let image = order
            .iter()
            .position(|name| images.path(name).to_str() == Some(file))?;
        Some((image, row["qdev"].as_str()?.to_owned()))
    };
    let mut devices: Vec<_> = rows.as_array().unwrap().iter().filter_map(of).collect();
    devices.sort_unstable();
    let compared = DestinationDisks::compare(&mut to, &disks).unwrap();
    if !compared.refused.is_empty() {
        return Err(compared.refused.join("; "));
    }
    assert!(to.is_unused(), "nothing was changed");
    to.prepare().unwrap();
    DestinationDisks::serve(&mut to, &disks).unwrap();
    let exports = destination.execute("query-block-exports", json!({}));
    let nodes = destination.execute("query-named-block-nodes", json!({ "flat": true }));
    let find = |rows: &serde_json::Value, key: &str, value: &str| {
        let mut rows = rows.as_array().unwrap().iter();
        rows.find(|row| row[key] == value).unwrap().clone()
    };
    let found = devices.iter().map(|(_, device)| {
        let number = disks
            .copied()
            .position(|disk| *disk.device == **device)
            .unwrap();
        let export = find(&exports, "id", &format!("hikkoshi-disk-{number}"));
        let node = find(&nodes, "node-name", export["node-name"].as_str().unwrap());
        let file = PathBuf::from(node["file"].as_str().unwrap());
        file.file_name().unwrap().to_str().unwrap().to_owned()
    });
    let found = found.collect();
    to.release().unwrap();
    from.release().unwrap();
    Ok(found)
}

/// Disks with ids, whose drives have each other's names at the destination; and anonymous ones in
/// another order of the command line.
#[test]
fn a_disk_is_copied_to_the_one_that_the_guest_sees_there() {
    with_each(|program| {
        let images = Images::new(&["a", "b", "a-to", "b-to"]);
        let drives = |[one, other]: [&str; 2], to: &str| {
            let [one, other] = [one, other].map(|name| format!("id={name}"));
            images.drive(&format!("a{to}"), &one) + &images.drive(&format!("b{to}"), &other)
        };
        let devices = |[one, other]: [&str; 2]| {
            [
                (
                    "SCSI",
                    format!(
                        "-device virtio-scsi-pci,id=s -device scsi-hd,bus=s.0,lun=0,drive={one},id=sda \
                         -device scsi-hd,bus=s.0,lun=1,drive={other},id=sdb"
                    ),
                ),
                (
                    "IDE",
                    format!(
                        "-device ide-hd,bus=ide.0,drive={one},id=hda \
                         -device ide-hd,bus=ide.2,drive={other},id=hdb"
                    ),
                ),
                (
                    "virtio",
                    format!(
                        "-device virtio-blk-pci,drive={one},id=vda \
                         -device virtio-blk-pci,drive={other},id=vdb"
                    ),
                ),
            ]
        };
        let (here, there) = (devices(["l", "r"]), devices(["r", "l"]));
        for ((kind, here), (_, there)) in here.iter().zip(&there) {
            let lines = [
                drives(["l", "r"], "") + here,
                drives(["r", "l"], "-to") + there,
            ];
            let found = counterparts(program, &images, [&lines[0], &lines[1]], &["a", "b"]);
            assert_eq!(
                found.as_deref(),
                Ok(&["a-to".to_owned(), "b-to".to_owned()][..]),
                "{kind}"
            );
        }
        // Anonymous devices, with and without named drives.
        let device =
            |drive: &str, addr: u8| format!("-device virtio-blk-pci,drive={drive},addr={addr} ");
        let here = drives(["l", "r"], "") + &device("l", 8) + &device("r", 9);
        let there = drives(["l", "r"], "-to") + &device("r", 9) + &device("l", 8);
        let found = counterparts(program, &images, [&here, &there], &["a", "b"]);
        assert_eq!(
            found.as_deref(),
            Ok(&["a-to".to_owned(), "b-to".to_owned()][..])
        );
        let node = |image: &str, name: &str| {
            let path = images.path(image);
            format!(
                "-blockdev driver=file,node-name={name},filename={} ",
                path.display()
            )
        };
        let here = node("a", "x") + &node("b", "y") + &device("x", 8) + &device("y", 9);
        let there = node("a-to", "y") + &node("b-to", "x") + &device("x", 9) + &device("y", 8);
        let found = counterparts(program, &images, [&here, &there], &["a", "b"]);
        assert_eq!(
            found.as_deref(),
            Ok(&["a-to".to_owned(), "b-to".to_owned()][..])
        );
        // Automatic slots follow the order of the command line, and the names contradict.
        let device = |drive: &str| format!("-device virtio-blk-pci,drive={drive} ");
        let here = drives(["l", "r"], "") + &device("l") + &device("r");
        let there = drives(["l", "r"], "-to") + &device("r") + &device("l");
        let error = counterparts(program, &images, [&here, &there], &["a", "b"]).unwrap_err();
        assert!(
            error.contains("the source's disk l is at pcie.0/"),
            "{error}"
        );
    });
}

/// A disk that the guest can write to is not left out because it may be a shared one.
#[test]
fn a_disk_of_which_little_is_known_has_to_be_named() {
    with_each(|program| {
        let images = Images::new(&["a", "b", "cd"]);
        let mut line = images.drive("a", "id=a") + &images.drive("b", "id=b");
        line += &images.drive("cd", "id=cd,readonly=on");
        line += "-device virtio-blk-pci,drive=a,id=vda -device virtio-blk-pci,drive=b,id=vdb \
                 -device virtio-blk-pci,drive=cd,id=vdc";
        let qemu = Qemu::usual(program, &line);
        let mut source = qemu.source();
        let left = copy(&mut source, &[], &[]).unwrap();
        assert_eq!(left, ["the disk vdc is not copied: it is read-only"]);
        assert_eq!(source.offered().copied().count(), 2);
        // QEMU has it open by another name then.
        std::fs::rename(images.path("b"), images.path("renamed")).unwrap();
        let error = copy(&mut source, &[], &[]).unwrap_err();
        for part in [
            "vdb is an image that is not found among QEMU's open files",
            "--copy-disks=vda,vdb",
            "--shared-disks=vdb",
        ] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        copy(&mut source, &[], &["vdb"]).unwrap();
        assert_eq!(source.offered().copied().count(), 1);
        let warned = copy(&mut source, &["vda", "vdb"], &[]).unwrap();
        assert!(warned[0].contains("the disk vdb is an image"), "{warned:?}");
        assert_eq!(source.offered().copied().count(), 2);
        source.release().unwrap();
    });
}

/// The guest's commands go past QEMU's block layer. (From QEMU 9.1 on there is no `scsi=on`.)
#[test]
fn a_disk_that_passes_commands_on_is_not_copied() {
    with_each(|program| {
        if !program.is_old() {
            return;
        }
        let images = Images::new(&["a"]);
        let device = "-device virtio-blk-pci,disable-modern=on,disable-legacy=off,scsi=on,drive=a,\
                      id=vda";
        let qemu = Qemu::usual(program, &(images.drive("a", "id=a") + device));
        let mut source = qemu.source();
        for named in [&[][..], &["vda"]] {
            let error = copy(&mut source, named, &[]).unwrap_err();
            let expected = "copying the disk vda: its device has scsi=on, so what the guest does";
            assert!(error.starts_with(expected), "{error}");
        }
        source.release().unwrap();
    });
}

/// A copy whose engine is gone, as its job in QEMU.
fn begin_copy(qemu: &Qemu) {
    let target = json!({
        "driver": "null-co", "node-name": "hikkoshi-disk-0", "size": MIB, "read-zeroes": true,
    });
    qemu.execute("blockdev-add", target);
    let job = json!({
        "job-id": "hikkoshi-disk-0", "device": "a", "target": "hikkoshi-disk-0", "sync": "full",
        "copy-mode": "write-blocking", "filter-node-name": "hikkoshi-disk-0-copied",
        "auto-dismiss": false,
    });
    qemu.execute("blockdev-mirror", job);
}

#[test]
fn copies_that_a_killed_engine_has_left_are_ended() {
    with_each(|program| {
        let images = Images::new(&["a"]);
        let line = images.drive("a", "id=a") + "-device virtio-blk-pci,drive=a,id=vda";
        let qemu = Qemu::usual(program, &line);
        // One that runs is left alone.
        let mut other = qemu.source();
        begin_copy(&qemu);
        let error = QemuSource::attach(&qemu.owners()).unwrap_err();
        let is_copy =
            |obstacle: &AttachError| matches!(obstacle, AttachError::Refused(Refusal::Copy { .. }));
        assert!(error.all().iter().any(is_copy), "{error:?}");
        let text = Report::new(&error).to_string();
        assert!(
            text.contains("hikkoshi cancel") && text.contains("another hikkoshi process"),
            "{text}"
        );
        assert!(!text.contains("wait for it, or end it (QMP"), "{text}");
        assert_eq!(
            qemu.execute("query-block-jobs", json!({}))
                .as_array()
                .unwrap()
                .len(),
            1
        );
        other.release().unwrap();
        drop(other);
        let mut source = qemu.source();
        assert_eq!(qemu.execute("query-jobs", json!({})), json!([]));
        let nodes = qemu.execute("query-named-block-nodes", json!({ "flat": true }));
        assert!(!nodes.to_string().contains("hikkoshi-disk"), "{nodes}");
        assert_eq!(qemu.state(), "running");
        source.release().unwrap();
    });
}

#[test]
fn the_server_that_a_killed_engine_has_left_is_stopped() {
    with_each(|program| {
        let images = Images::new(&["a"]);
        let line = images.drive("a", "id=a") + "-device virtio-blk-pci,drive=a,id=vda";
        let qemu = Qemu::usual(program, &format!("-incoming defer {line}"));
        let path = images.path("nbd");
        let address = json!({ "addr": { "type": "unix", "data": { "path": path } } });
        let export = |id: &str| {
            let node = qemu.execute("query-block", json!({}))[0]["inserted"]["node-name"].clone();
            json!({ "id": id, "type": "nbd", "node-name": node, "name": id, "writable": true })
        };
        let exports = || {
            qemu.execute("query-block-exports", json!({}))
                .as_array()
                .unwrap()
                .len()
        };
        // Of another program.
        qemu.execute("nbd-server-start", address);
        qemu.execute("block-export-add", export("backup"));
        drop(qemu.destination());
        assert_eq!(exports(), 1);
        qemu.execute(
            "block-export-del",
            json!({ "id": "backup", "mode": "hard" }),
        );
        crate::support::eventually("the export to be removed", || exports() == 0);
        qemu.execute("block-export-add", export("hikkoshi-disk-0"));
        let mut destination = qemu.destination();
        assert_eq!(exports(), 0);
        let mut client = qemu.client();
        let stopped = client.execute("nbd-server-stop", json!({}));
        assert!(stopped.is_err(), "the server was stopped: {stopped:?}");
        destination.release().unwrap();
    });
}

/// Why a guest with this drive `a` is refused at a destination with that one, and what is warned
/// of.
fn compared(program: &Program, [here, there]: [&str; 2], shared: bool) -> [String; 2] {
    let device = "-device virtio-blk-pci,drive=a,id=vda";
    let source = Qemu::usual(program, &format!("{here} {device}"));
    let destination = Qemu::usual(program, &format!("-incoming defer {there} {device}"));
    let mut from = source.source();
    let mut to = destination.destination();
    let selection = DiskSelection {
        shared: shared.then(Vec::new),
        ..DiskSelection::default()
    };
    from.choose_disks(&selection).unwrap();
    let found = DestinationDisks::compare(&mut to, &from.offered()).unwrap();
    assert!(to.is_unused(), "nothing was changed");
    to.release().unwrap();
    from.release().unwrap();
    [found.refused.join("; "), found.warnings.join("; ")]
}

/// Two hosts have the same image, and the backing files of their own folders: QEMU looks for these
/// beside the image.
#[test]
fn another_backing_file_is_another_disk() {
    let qemu_img = hikkoshi_lab::qemu_img().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|host| folder.path().join(host));
    for host in [&here, &there] {
        std::fs::create_dir(host).unwrap();
    }
    let base = |host: &Path, content: &str| {
        let _ = std::fs::remove_file(host.join("base.raw"));
        let mut content = content.as_bytes().to_vec();
        content.resize(1 << 20, 0);
        std::fs::write(host.join("base.raw"), content).unwrap();
    };
    base(&here, "content");
    for (image, below, format) in [
        ("middle.qcow2", "base.raw", "raw"),
        ("top.qcow2", "middle.qcow2", "qcow2"),
    ] {
        let mut create = Command::new(&qemu_img);
        create.args(["create", "-q", "-f", "qcow2", "-b", below, "-F", format]);
        assert!(
            create
                .arg(image)
                .current_dir(&here)
                .status()
                .unwrap()
                .success()
        );
        std::fs::hard_link(here.join(image), there.join(image)).unwrap();
    }
    let drive = |host: &Path, more: &str| {
        let image = host.join("top.qcow2");
        format!(
            "-drive if=none,id=a,format=qcow2,file={}{more}",
            image.display()
        )
    };
    with_each(|program| {
        let lines = [drive(&here, ""), drive(&there, "")];
        let of = |[here, there]: [&str; 2], shared| compared(program, [here, there], shared);
        let lines = lines.each_ref().map(|line| &**line);
        let _ = std::fs::remove_file(there.join("base.raw"));
        std::fs::hard_link(here.join("base.raw"), there.join("base.raw")).unwrap();
        assert_eq!(of(lines, false), [String::new(), String::new()], "the same");
        // A copy is not written to, but that it is one is not known.
        base(&there, "content");
        let names = |host: &Path| host.join("base.raw").display().to_string();
        let both = [names(&here), names(&there)];
        for content in ["content", "another"] {
            base(&there, content);
            let [refused, warned] = of(lines, false);
            assert!(
                refused.contains(
                    "it is not known whether the destination has the same: vda (backing file: "
                ),
                "{refused}"
            );
            for name in &both {
                assert!(refused.contains(name), "{name} is not in: {refused}");
            }
            assert_eq!(warned, "");
            let [refused, warned] = of(lines, true);
            assert_eq!(refused, "");
            assert!(
                warned.contains("whether they have the same backing file: "),
                "{warned}"
            );
        }
        // Without the file QEMU does not start. Without the image that names it, the guest would
        // read zeros.
        let alone = format!(
            "-blockdev driver=file,node-name=f,filename={} \
             -blockdev {{\"driver\":\"qcow2\",\"node-name\":\"a\",\"file\":\"f\",\"backing\":null}}",
            there.join("top.qcow2").display()
        );
        let [refused, _] = of([lines[0], &alone], false);
        assert!(
            refused.contains("vda (backing files: ")
                && refused.contains(", none at the destination"),
            "{refused}"
        );
    });
}

/// QEMU has the image of a CD open for writing, unless its owner says otherwise.
#[test]
fn a_cd_is_read_only() {
    with_each(|program| {
        let images = Images::new(&["a", "cd", "scsi"]);
        let line = images.drive("a", "id=a")
            + &images.drive("cd", "id=cd")
            + &images.drive("scsi", "id=scsi")
            + "-device virtio-blk-pci,drive=a,id=vda -device ide-cd,drive=cd,id=cd0 \
               -device virtio-scsi-pci,id=s -device scsi-cd,bus=s.0,drive=scsi,id=cd1";
        let qemu = Qemu::usual(program, &line);
        let mut source = qemu.source();
        let mut left = copy(&mut source, &[], &[]).unwrap();
        left.sort();
        let cd = |name| format!("the disk {name} is not copied: it is read-only");
        assert_eq!(left, [cd("cd0"), cd("cd1")]);
        source.release().unwrap();
    });
}
