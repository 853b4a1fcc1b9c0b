//! Whether the disks of a guest can be copied, or are those of the destination: `check
//! --copy-disks` and `--shared-disks`, and `migrate`.

use std::path::PathBuf;
use std::process::Command;

use hikkoshi_lab::{Disk, DiskFormat, DiskImage, Mount, Vm, VmConfig};
use hikkoshi_tests::{Guest, JsonSchema, Program, TestEnv, hikkoshi};
use rustix::fs::listxattr;
use serde_json::{Value, json};

use super::{Unchanged, idle_guest, obstacles, run, waiting_receiver};
use crate::disks::copied::{blank_disk, blank_disk_of, full_disk};
use crate::disks::copied_images::{blank, drive};

/// The second disk does not fit. Neither QEMU is changed, and the destination waits as before.
#[test]
fn disks_are_compared_with_those_of_a_destination() {
    let env = TestEnv::new();
    let from = [DiskFormat::Raw, DiskFormat::Qcow2].map(|format| full_disk(&env, format));
    let to = blank_disk(&env, DiskFormat::Raw);
    let small = blank_disk_of(&env, None, DiskFormat::Raw, 12);
    let [first, second] = from.clone();
    let guest = Guest::start(&env, idle_guest().disk(first).disk(second));
    let there = idle_guest()
        .disk(to)
        .disk(small)
        .console(guest.vm().console().clone())
        .incoming()
        .start(env.lab(), "asked")
        .unwrap();
    let (mut receive, invitation) = waiting_receiver(&env, &there);
    let before = [Unchanged::of_vm(guest.vm()), Unchanged::of_vm(&there)];
    let qmp = guest.vm().qmp_path();
    let json_of = |code, more: &[&str]| -> Value {
        let object = run(qmp, code, &[more, &["--json", "-"]].concat());
        JsonSchema::published().assert("check", object.trim())
    };

    let every_mode = json!(["precopy", "postcopy", "hybrid"]);
    let copied =
        |name: &str| json!({ "name": name, "bytes": 24 << 20, "snapshots": [], "bitmaps": [] });
    let both = json!([copied("disk0-device"), copied("disk1-device")]);
    assert_eq!(json_of(0, &[])["copied_disks"], Value::Null);
    let found = json_of(0, &["--copy-disks"]);
    assert_eq!(
        (&found["copied_disks"], &found["modes"]),
        (&both, &every_mode)
    );
    let text = run(qmp, 0, &["--copy-disks=disk0-device"]);
    assert!(text.contains("copied disk disk0-device: 24 MiB"), "{text}");
    assert!(!text.contains("copied disk disk1-device"), "{text}");
    // The destination needs no access to a disk that is copied.
    let reach = text
        .lines()
        .find(|line| line.contains("reach the same disks"));
    let names = from.map(|disk| disk.image().path().display().to_string());
    let reach = reach.unwrap_or_else(|| panic!("{text}"));
    assert!(
        !reach.contains(&names[0]) && reach.contains(&names[1]),
        "{reach}"
    );

    let found = json_of(1, &["--copy-disks", "--to", &invitation]);
    assert_eq!(found["obstacles"], json!([]), "nothing here");
    let there_is = &found["destination"];
    assert_eq!(there_is["obstacles"][0]["modes"], every_mode, "{found}");
    let differs = "the disk disk1-device has 24 MiB at the source, and 12 MiB at the destination";
    assert!(obstacles(there_is).contains(differs), "{found}");
    assert_eq!(
        there_is["obstacles"].as_array().unwrap().len(),
        1,
        "{found}"
    );
    // Also if it is not copied.
    let text = run(qmp, 1, &["--copy-disks=disk0-device", "--to", &invitation]);
    assert!(text.contains(differs), "{text}");

    let found = json_of(1, &["--copy-disks=sda", "--to", &invitation]);
    let text = "the guest has no disk 'sda' with a medium";
    assert!(obstacles(&found).contains(text), "{found}");
    assert_eq!(
        (&found["copied_disks"], &found["modes"]),
        (&Value::Null, &json!([]))
    );

    assert!(!receive.has_exited());
    before[0].assert(guest.vm());
    before[1].assert(&there);
}

/// A destination for guests with one disk, this one.
struct There {
    _vm: Vm,
    receive: Program,
    invitation: String,
    journals: PathBuf,
}

impl There {
    fn with(env: &TestEnv, guest: &Vm, disk: Disk, name: &str) -> Self {
        Self::start(env, guest, idle_guest().disk(disk), name)
    }

    fn start(env: &TestEnv, guest: &Vm, there: VmConfig, name: &str) -> Self {
        let there = there.console(guest.console().clone()).incoming();
        let there = there.start(env.lab(), name).unwrap();
        let (receive, invitation) = waiting_receiver(env, &there);
        Self {
            _vm: there,
            receive,
            invitation,
            journals: env.folder().join("source-journal"),
        }
    }

    /// Both `check` and `migrate` refuse the guest, which stays as it is, and name these.
    fn refuses(&mut self, guest: &Vm, options: &[&str], parts: &[&str]) {
        let qmp = guest.qmp_path();
        let before = Unchanged::of_vm(guest);
        let to = ["--to", &self.invitation];
        let text = run(qmp, 1, &[&to, options].concat());
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
        let mut migrate = Command::new(hikkoshi());
        migrate
            .arg("migrate")
            .arg("--qmp")
            .arg(qmp)
            .args(to)
            .args(options);
        migrate.arg("--journal").arg(&self.journals);
        Program::start("migrate", migrate).wait().assert(1, parts);
        before.assert(guest);
        assert!(!self.receive.has_exited());
    }

    fn accepts(&self, guest: &Vm, options: &[&str]) -> String {
        let to = ["--to", &self.invitation];
        run(guest.qmp_path(), 0, &[&to, options].concat())
    }
}

/// A guest on another disk than its own would read what is not there, and lose what it wrote.
#[test]
fn a_guest_does_not_continue_on_another_disk() {
    let env = TestEnv::new();
    let from = blank_disk_of(&env, None, DiskFormat::Raw, 150);
    let guest = idle_guest()
        .disk(from.clone())
        .start(env.lab(), "guest")
        .unwrap();
    let small = blank_disk_of(&env, None, DiskFormat::Qcow2, 100);
    let mut there = There::with(&env, &guest, small, "small");
    let sizes = "the disk disk0-device has 150 MiB at the source, and 100 MiB at the destination";
    for options in [&[][..], &["--copy-disks"], &["--shared-disks"]] {
        there.refuses(&guest, options, &[sizes]);
    }
    drop(there);

    // Of the same size: nothing shows that it is the same one.
    let other = blank_disk_of(&env, None, DiskFormat::Raw, 150);
    let mut there = There::with(&env, &guest, other, "other");
    let names = "(--copy-disks=disk0-device), or, if both hosts use the same, say so \
                 (--shared-disks=disk0-device)";
    let unknown = "it is not known whether the destination has the same: disk0-device";
    there.refuses(&guest, &[], &[unknown, names]);
    for options in [
        "--shared-disks",
        "--shared-disks=disk0-device",
        "--copy-disks",
    ] {
        let text = there.accepts(&guest, &[options]);
        let compared = "compared: machine type, memory, devices, processors, disks)";
        assert!(text.contains(compared), "{text}");
    }
    drop(there);

    // The same file needs no option.
    let mut there = There::with(&env, &guest, from, "same");
    there.accepts(&guest, &[]);
    there.refuses(
        &guest,
        &["--copy-disks"],
        &["has the same image at both sides"],
    );
}

/// Hosts that share a folder, each with numbers of its own for the files: only the mark shows that
/// they have the same one.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_disk_in_a_shared_folder_is_known_by_its_mark() {
    let env = TestEnv::new();
    let [image, other] = ["shared", "other"].map(|name| blank(env.lab(), name, DiskFormat::Raw, 8));
    let folder = image.path().parent().unwrap();
    let view = |name, options| Mount::view(env.lab(), name, folder, options).unwrap();
    let views = [
        view("here", &[]),
        view("there", &[]),
        view("unmarked", &["--xattr-none"]),
    ];
    let config = |view: &Mount, image: &DiskImage| {
        let path = view.path().join(image.path().file_name().unwrap());
        idle_guest()
            .arguments(drive("disk", &path, DiskFormat::Raw, ""))
            .arguments(["-device", "virtio-blk-pci,drive=disk,id=disk-device"])
    };
    let guest = config(&views[0], &image).start(env.lab(), "guest").unwrap();
    let there = |view, image, name| There::start(&env, &guest, config(view, image), name);
    let unknown = "it is not known whether the destination has the same: disk-device";
    there(&views[1], &other, "other").refuses(&guest, &[], &[unknown, " on fuse at the source"]);
    there(&views[2], &image, "unmarked").refuses(&guest, &[], &[unknown]);

    let mut there = there(&views[1], &image, "same");
    there.accepts(&guest, &[]);
    let same = "the disk disk-device has the same image at both sides";
    there.refuses(&guest, &["--copy-disks=disk-device"], &[same]);
    let mut names = [0; 4096];
    let length = listxattr(image.path(), &mut names).unwrap();
    let names = String::from_utf8_lossy(&names[..length]);
    assert!(!names.contains("hikkoshi"), "{names}");
}

/// What an image holds besides its content is not dropped unasked, when the disk is copied.
#[test]
fn snapshots_and_bitmaps_are_only_left_behind_on_request() {
    let env = TestEnv::new();
    let from = blank_disk(&env, DiskFormat::Qcow2);
    from.image().add_snapshot("before").unwrap();
    from.image().add_bitmap("backup").unwrap();
    let guest = idle_guest().disk(from).start(env.lab(), "guest").unwrap();
    let qmp = guest.qmp_path();
    // A guest whose disk is not copied keeps them.
    let text = run(qmp, 0, &[]);
    assert!(!text.contains("snapshots"), "{text}");
    let both = "the internal snapshots 'before' of the disk disk0-device; the dirty bitmaps \
                'backup' of the disk disk0-device. Copy them without that by --drop-snapshots and \
                --drop-bitmaps";
    let text = run(qmp, 1, &["--copy-disks"]);
    assert!(text.contains(both), "{text}");
    let mut migrate = Command::new(hikkoshi());
    migrate
        .args(["migrate", "--copy-disks", "--drop-snapshots"])
        .arg("--qmp")
        .arg(qmp);
    migrate.arg(env.unused_socket());
    let bitmaps = "the dirty bitmaps 'backup' of the disk disk0-device. Copy them without that by \
                   --drop-bitmaps";
    Program::start("migrate", migrate)
        .wait()
        .assert(1, &[bitmaps]);
    let text = run(
        qmp,
        0,
        &["--copy-disks", "--drop-snapshots", "--drop-bitmaps"],
    );
    let listed = "copied disk disk0-device: 24 MiB, without its snapshots before and its bitmaps \
                  backup";
    assert!(text.contains(listed), "{text}");
}
