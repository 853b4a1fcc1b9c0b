//! The devices of disks that are copied: which one of the destination is whose, and what the guest
//! clears and discards.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use MessageKind::Commit;
use hikkoshi_lab::{DiskFormat, DiskImage, QemuVersion, Vm, VmConfig};
use hikkoshi_tests::{Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv};
use serde_json::json;

use super::copied_images::{blank, drive, full, guest, move_with_disks, run, write_at};
use crate::dashboard::run_folder;

/// SCSI disks with an id, whose drives have each other's names at the destination: each is copied
/// to the one with its id and address.
#[test]
#[ignore = "part of `make test-disks`"]
fn disks_whose_drives_have_each_others_names_are_not_confused() {
    for version in QemuVersion::ALL {
        let env = TestEnv::new();
        let lab = env.lab();
        let from = ["one", "two"].map(|name| blank(lab, name, DiskFormat::Raw, 8));
        write_at(&from[0], &[1 << 20]);
        write_at(&from[1], &[2 << 20, 5 << 20]);
        let to = ["one-to", "two-to"].map(|name| blank(lab, name, DiskFormat::Raw, 8));
        let config = |images: &[DiskImage; 2], drives: [&str; 2]| {
            let controller = ["-device".to_owned(), "virtio-scsi-pci,id=scsi".to_owned()];
            let mut config = guest().version(version).arguments(controller);
            for (number, image) in images.iter().enumerate() {
                let (name, id) = (drives[number], ["sda", "sdb"][number]);
                let device = format!("scsi-hd,bus=scsi.0,lun={number},drive={name},id={id}");
                config = config
                    .arguments(drive(name, image.path(), image.format(), ""))
                    .arguments(["-device".to_owned(), device]);
            }
            config
        };
        let mut guest = Guest::boot(&env, config(&from, ["left", "right"]));
        let plan = MigrationPlan::new("hybrid").migrate_args(&["--copy-disks=sda,sdb"]);
        let images = [(&from[0], &to[0]), (&from[1], &to[1])];
        let there = config(&to, ["right", "left"]);
        let report = move_with_disks(&mut guest, plan, there, &images);
        let names: Vec<_> = report.disks.iter().map(|disk| &*disk.name).collect();
        assert_eq!(names, ["sda", "sdb"]);
    }
}

/// Has the guest's disk `data` do this, as the guest would.
fn use_disk(vm: &Vm, command: &str) {
    let line = format!("qemu-io data \"{command}\"");
    let line = json!({ "command-line": line });
    vm.qmp().execute("human-monitor-command", line).unwrap();
}

/// The bytes of a raw image.
fn read(image: &DiskImage) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(image.path().metadata().unwrap().len()).unwrap()];
    let file = File::open(image.path()).unwrap();
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

const MIB: usize = 1 << 20;

/// What is discarded while the disk is copied, and when it is complete.
const DISCARDED: [Range<usize>; 2] = [2 * MIB..3 * MIB, 12 * MIB..13 * MIB];

/// What is cleared then.
const CLEARED: [Range<usize>; 4] = [
    4 * MIB..5 * MIB,
    14 * MIB..15 * MIB,
    6 * MIB..6 * MIB + 4096,
    16 * MIB..16 * MIB + 4096,
];

/// What the guest clears is zero at both sides. What it discards stays as it is at both: QEMU
/// passes discards neither on nor to the source's image while a disk is copied.
#[test]
#[ignore = "part of `make test-disks`"]
fn what_the_guest_clears_and_discards_is_the_same_at_both_sides() {
    for (version, options) in [
        (QemuVersion::V10_0, ",discard=unmap"),
        (QemuVersion::V7_2, ",discard=unmap"),
        (QemuVersion::V10_0, ",discard=ignore"),
    ] {
        let env = TestEnv::new();
        let lab = env.lab();
        let folder = run_folder(&env);
        let from = full(lab, "data-from", DiskFormat::Raw, 24);
        let to = blank(lab, "data-to", DiskFormat::Raw, 24);
        let before = read(&from);
        let config = |image: &DiskImage, options| -> VmConfig {
            let device = "virtio-blk-pci,drive=data,id=data-device".to_owned();
            guest()
                .version(version)
                .arguments(drive("data", image.path(), image.format(), options))
                .arguments(["-device".to_owned(), device])
        };
        let mut guest = Guest::boot(&env, config(&from, ",discard=unmap"));
        let there = config(&to, options);
        let plan = MigrationPlan::new("hybrid")
            .migrate_args(&["--copy-disks=data", "--bandwidth", "4M"])
            .journals_at(&folder, &folder)
            .destination_config(there.clone())
            .hold_at(Breakpoint::before(Commit));
        let migration = guest.start_migration(&plan);
        migration.migrate.wait_stderr("copying disks: ");
        for command in ["discard 2M 1M", "write -z 4M 1M", "write -z -u 6M 4k"] {
            use_disk(guest.vm(), command);
        }
        migration.migrate.wait_stderr("pre-copy, round 1");
        for command in ["discard 12M 1M", "write -z 14M 1M", "write -z -u 16M 4k"] {
            use_disk(guest.vm(), command);
        }
        run(&folder, &["set", "--bandwidth", "none"]);
        migration.wait_held();
        let images = [read(&from), read(&to)];
        assert!(images[0] == images[1], "the disks differ");
        for range in CLEARED {
            let bytes = &images[1][range.clone()];
            assert!(bytes.iter().all(|byte| *byte == 0), "{range:?}");
        }
        for range in DISCARDED {
            assert!(
                images[1][range.clone()] == before[range.clone()],
                "{range:?}"
            );
        }
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
        guest.set_config(there);
    }
}
