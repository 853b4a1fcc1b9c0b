//! The images of disks that are copied: several of them, with other content before, large and
//! sparse, without ids; the same image at both sides; and how the copy is shown.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use MessageKind::{Commit, DiskBytes};
use hikkoshi_lab::prometheus::check_metrics;
use hikkoshi_lab::{DiskContent, DiskFormat, DiskImage, Lab, QemuVersion, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Exit, Guest, JsonReport, JsonSchema, MessageKind, Migration, MigrationPlan,
    Program, TestEnv, hikkoshi,
};
use serde_json::Value;

use super::copied::assert_nothing_left;
use crate::dashboard::reports::report;
use crate::dashboard::{Dashboard, run_folder};

/// A guest that uses a disk which both hosts reach. The disks beside it stay as they are.
pub(crate) fn guest() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(10_000))
}

/// Adds a disk that the guest does not use, at a device with an id.
fn with_disk(config: VmConfig, name: &str, image: &DiskImage) -> VmConfig {
    config
        .arguments(drive(name, image.path(), image.format(), ""))
        .arguments([
            "-device".to_owned(),
            format!("virtio-blk-pci,drive={name},id={name}-device"),
        ])
}

pub(crate) fn drive(name: &str, path: &Path, format: DiskFormat, options: &str) -> [String; 2] {
    let path = path.display();
    let format = format.option();
    let drive = format!("if=none,id={name},format={format},file={path},cache=none{options}");
    ["-drive".to_owned(), drive]
}

/// An image that holds zeros.
pub(crate) fn blank(lab: &Lab, name: &str, format: DiskFormat, mib: u64) -> DiskImage {
    DiskImage::blank(lab, None, name, format, DiskContent::Blocks { mib }).unwrap()
}

/// An image without a zero.
pub(crate) fn full(lab: &Lab, name: &str, format: DiskFormat, mib: u64) -> DiskImage {
    DiskImage::new(lab, name, format, DiskContent::Blocks { mib }).unwrap()
}

/// Writes 64 KiB that are not zeros at each of these places of a raw image.
pub(crate) fn write_at(image: &DiskImage, places: &[u64]) {
    let file = File::options().write(true).open(image.path()).unwrap();
    for (number, place) in places.iter().enumerate() {
        let bytes = vec![u8::try_from(number + 1).unwrap(); 64 << 10];
        file.write_all_at(&bytes, *place).unwrap();
    }
}

/// Moves the guest, compares the images at the switch, and returns the source's report.
pub(crate) fn move_with_disks(
    guest: &mut Guest<'_>,
    plan: MigrationPlan,
    there: VmConfig,
    images: &[(&DiskImage, &DiskImage)],
) -> JsonReport {
    let plan = plan
        .destination_config(there.clone())
        .hold_at(Breakpoint::before(Commit));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    for (from, to) in images {
        let same = from.has_content_of(to).unwrap();
        assert!(same, "{} differs at the switch", from.path().display());
    }
    migration.relay().release();
    let (exits, finished) = migration.wait();
    let source = guest.vm().clone();
    let report = guest.complete_migration(&exits, finished, "running");
    guest.set_config(there);
    assert_eq!(report.disks.len(), images.len(), "{report:?}");
    assert!(report.disks.iter().all(|disk| disk.in_sync), "{report:?}");
    for vm in [&source, guest.vm()] {
        assert_nothing_left(vm);
    }
    report
}

/// Of different sizes and formats.
#[test]
#[ignore = "part of `make test-disks`"]
fn several_disks_are_copied() {
    let env = TestEnv::new();
    let lab = env.lab();
    let from = [
        full(lab, "one-from", DiskFormat::Raw, 24),
        full(lab, "two-from", DiskFormat::Qcow2, 10),
    ];
    let to = [
        blank(lab, "one-to", DiskFormat::Qcow2, 24),
        blank(lab, "two-to", DiskFormat::Raw, 10),
    ];
    let config = |[one, two]: &[DiskImage; 2]| {
        let config = with_disk(guest(), "one", one);
        with_disk(config, "two", two)
    };
    let mut guest = Guest::boot(&env, config(&from));
    let plan = MigrationPlan::new("hybrid").migrate_args(&["--copy-disks=one,two"]);
    let images = [(&from[0], &to[0]), (&from[1], &to[1])];
    let report = move_with_disks(&mut guest, plan, config(&to), &images);
    let mut copied: Vec<_> = report
        .disks
        .iter()
        .map(|disk| (&*disk.name, disk.total_bytes >> 20))
        .collect();
    copied.sort_unstable();
    assert_eq!(copied, [("one-device", 24), ("two-device", 10)]);
}

/// QEMU's server may close a connection that is not set up within 10 s: all of them are set up
/// before the first disk takes the line.
#[test]
#[ignore = "part of `make test-disks`"]
fn several_disks_are_copied_over_a_slow_line() {
    for version in QemuVersion::ALL {
        let env = TestEnv::new();
        let lab = env.lab();
        let folder = run_folder(&env);
        let names = ["one", "two", "three", "four"];
        let images = |side, image: fn(&Lab, &str, DiskFormat, u64) -> DiskImage| {
            names.map(|name| image(lab, &format!("{name}-{side}"), DiskFormat::Raw, 2))
        };
        let (from, to) = (images("from", full), images("to", blank));
        let config = |images: &[DiskImage; 4]| {
            let add = |config, (name, image): (&&str, _)| with_disk(config, name, image);
            let disks = names.iter().zip(images);
            disks.fold(guest().version(version), add)
        };
        let mut guest = Guest::boot(&env, config(&from));
        let plan = MigrationPlan::new("postcopy")
            .migrate_args(&["--copy-disks=one,two,three,four", "--bandwidth", "200K"])
            .journals_at(&folder, &folder)
            .destination_config(config(&to))
            .hold_at(Breakpoint::before(Commit));
        let migration = guest.start_migration(&plan);
        hikkoshi_tests::eventually("all disks to be copied", || {
            let [here, _] = states(&folder);
            match here["disks"].as_array().map(Vec::len) {
                Some(4) => Ok(()),
                _ => Err(here.to_string()),
            }
        });
        run(&folder, &["set", "--bandwidth", "none"]);
        migration.wait_held();
        for (from, to) in from.iter().zip(&to) {
            assert!(from.has_content_of(to).unwrap());
        }
        migration.relay().release();
        let (exits, finished) = migration.wait();
        let report = guest.complete_migration(&exits, finished, "running");
        guest.set_config(config(&to));
        assert_eq!(report.disks.len(), 4, "{report:?}");
    }
}

/// What is zero at the source overwrites what was at the destination.
#[test]
#[ignore = "part of `make test-disks`"]
fn what_an_image_held_before_is_overwritten() {
    let env = TestEnv::new();
    let lab = env.lab();
    let mib = 20;
    let from = [
        blank(lab, "one-from", DiskFormat::Raw, mib),
        blank(lab, "two-from", DiskFormat::Raw, mib),
    ];
    for image in &from {
        write_at(image, &[3 << 20, (12 << 20) + 4096]);
    }
    let to = [
        full(lab, "one-to", DiskFormat::Raw, mib),
        full(lab, "two-to", DiskFormat::Qcow2, mib),
    ];
    assert!(!from[0].has_content_of(&to[0]).unwrap());
    let config = |[one, two]: &[DiskImage; 2]| {
        let config = with_disk(guest(), "one", one);
        with_disk(config, "two", two)
    };
    let mut guest = Guest::boot(&env, config(&from));
    let plan = MigrationPlan::new("precopy").migrate_args(&["--copy-disks=one,two"]);
    let images = [(&from[0], &to[0]), (&from[1], &to[1])];
    move_with_disks(&mut guest, plan, config(&to), &images);
}

/// Offsets above 2 and 4 GiB, and zeros that take no room.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_large_sparse_image_is_copied_and_stays_sparse() {
    let env = TestEnv::new();
    let lab = env.lab();
    let mib = 5 << 10;
    let from = blank(lab, "large-from", DiskFormat::Raw, mib);
    let end = mib << 20;
    let places = [0, (2 << 30) - 4096, (4 << 30) - 4096, end - (64 << 10)];
    write_at(&from, &places);
    let to = blank(lab, "large-to", DiskFormat::Qcow2, mib);
    let mut guest = Guest::boot(&env, with_disk(guest(), "large", &from));
    let plan = MigrationPlan::new("postcopy").migrate_args(&["--copy-disks=large"]);
    let there = with_disk(self::guest(), "large", &to);
    let report = move_with_disks(&mut guest, plan, there, &[(&from, &to)]);
    assert_eq!(report.disks[0].total_bytes, end, "{report:?}");
    let sent = report.disk_bytes.unwrap();
    assert!((4 << 16..64 << 20).contains(&sent), "{sent} bytes");
    let allocated = std::fs::metadata(to.path()).unwrap().blocks() * 512;
    assert!(allocated < 64 << 20, "{allocated} bytes");
}

/// Behind virtio-scsi, as devices that have no id, in another order at the destination: each is
/// found by its drive.
#[test]
#[ignore = "part of `make test-disks`"]
fn devices_without_an_id_are_found_by_their_drives() {
    let env = TestEnv::new();
    let lab = env.lab();
    let from = ["left", "right"].map(|name| blank(lab, name, DiskFormat::Raw, 8));
    write_at(&from[0], &[1 << 20]);
    write_at(&from[1], &[2 << 20, 5 << 20]);
    let to = ["left-to", "right-to"].map(|name| blank(lab, name, DiskFormat::Qcow2, 8));
    let config = |[left, right]: &[DiskImage; 2], order: [usize; 2]| {
        let devices = ["left", "right"].map(|name| {
            let lun = usize::from(name == "right");
            [
                "-device".to_owned(),
                format!("scsi-hd,bus=scsi.0,lun={lun},drive={name}"),
            ]
        });
        let controller = "virtio-scsi-pci,id=scsi".to_owned();
        let config = guest()
            .arguments(drive("left", left.path(), left.format(), ""))
            .arguments(drive("right", right.path(), right.format(), ""))
            .arguments(["-device".to_owned(), controller]);
        order.into_iter().fold(config, |config, number| {
            config.arguments(devices[number].clone())
        })
    };
    let mut guest = Guest::boot(&env, config(&from, [0, 1]));
    let plan = MigrationPlan::new("hybrid").migrate_args(&["--copy-disks=left,right"]);
    let images = [(&from[0], &to[0]), (&from[1], &to[1])];
    let report = move_with_disks(&mut guest, plan, config(&to, [1, 0]), &images);
    let names: Vec<_> = report.disks.iter().map(|disk| &*disk.name).collect();
    assert_eq!(names, ["left", "right"]);
}

/// A folder that is seen at another place as well. Unmounted on drop.
struct Bound(PathBuf);

impl Bound {
    fn new(folder: &Path, at: PathBuf) -> Self {
        std::fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.arg("--bind").arg(folder).arg(&at);
        assert!(mount.status().unwrap().success());
        Self(at)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The image of the source by another name, without QEMU's locks: nothing is written to it.
#[test]
#[ignore = "part of `make test-disks`"]
fn one_image_at_both_sides_is_refused_by_any_name() {
    let env = TestEnv::new();
    let image = full(env.lab(), "shared", DiskFormat::Raw, 8);
    let config = |path: &Path| {
        let unlocked = ",file.locking=off";
        guest()
            .arguments(drive("disk", path, DiskFormat::Raw, unlocked))
            .arguments(["-device", "virtio-blk-pci,drive=disk,id=disk-device"])
    };
    let folder = image.path().parent().unwrap();
    let name = image.path().file_name().unwrap();
    let bound = Bound::new(folder, env.folder().join("bound"));
    let (link, hard) = (env.folder().join("link"), folder.join("shared-hard"));
    std::os::unix::fs::symlink(image.path(), &link).unwrap();
    std::fs::hard_link(image.path(), &hard).unwrap();
    let mut guest = Guest::boot(&env, config(&link));
    for path in [image.path(), &bound.0.join(name), &link, &hard] {
        // Who names a disk is not asked whether it is locked.
        let plan = MigrationPlan::new("hybrid")
            .migrate_args(&["--copy-disks=disk"])
            .destination_config(config(path));
        let migration = guest.start_migration(&plan);
        let (exits, finished) = migration.wait_for_source_first();
        let text = "has the same image at both sides";
        exits.assert_source(1, &[text, "runs at the source"]);
        guest.assert_stayed(finished, text);
        assert_nothing_left(guest.vm());
    }
    image.check().unwrap();
    std::fs::remove_file(&hard).unwrap();
}

/// The destination's images are the source's in another order, and neither QEMU locks them: nothing
/// is written to them. One disk is copied, then both.
#[test]
#[ignore = "part of `make test-disks`"]
fn the_image_of_another_disk_is_not_overwritten() {
    let env = TestEnv::new();
    let [one, other] = ["one", "other"].map(|name| full(env.lab(), name, DiskFormat::Raw, 8));
    let config = |images: [&DiskImage; 2]| {
        let disks = ["left", "right"].into_iter().zip(images);
        disks.fold(guest(), |config, (name, image)| {
            let unlocked = ",file.locking=off";
            let device = format!("virtio-blk-pci,drive={name},id={name}-device");
            config
                .arguments(drive(name, image.path(), image.format(), unlocked))
                .arguments(["-device".to_owned(), device])
        })
    };
    let mut guest = Guest::boot(&env, config([&one, &other]));
    for option in ["--copy-disks=left", "--copy-disks=left,right"] {
        let plan = MigrationPlan::new("hybrid")
            .migrate_args(&[option])
            .destination_config(config([&other, &one]));
        let migration = guest.start_migration(&plan);
        let (exits, finished) = migration.wait_for_source_first();
        let text = "has the image of another disk of the source at the destination";
        exits.assert_source(1, &[text, "runs at the source"]);
        guest.assert_stayed(finished, text);
        assert_nothing_left(guest.vm());
    }
    for image in [one, other] {
        image.check().unwrap();
    }
}

/// Runs `hikkoshi` with these words, for the migrations in this run folder.
pub(crate) fn run(folder: &Path, words: &[&str]) -> Exit {
    let mut command = Command::new(hikkoshi());
    command.args(words).arg("--journal").arg(folder);
    let exit = Program::start(words[0], command).wait();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    exit
}

/// What `hikkoshi status --json` says of both sides: the source's state and the destination's.
fn states(folder: &Path) -> [Value; 2] {
    let schema = JsonSchema::of_status();
    let exit = run(folder, &["status", "--json"]);
    let all: Vec<_> = exit
        .stdout
        .lines()
        .map(|line| schema.assert("migration_status", line))
        .collect();
    ["source", "destination"].map(|side| {
        let found = all.iter().find(|one| one["migration"]["side"] == side);
        // It may not have begun.
        found.map_or(Value::Null, |one| one["state"].clone())
    })
}

/// What the operator sees while the disk is copied.
fn assert_shown(folder: &Path, migration: &Migration, dashboard: &Dashboard) {
    let [here, there] = states(folder);
    assert_eq!(
        (&here["phase"], &there["phase"]),
        (&"disks".into(), &"disks".into())
    );
    let disk = &here["disks"][0];
    assert_eq!(disk["name"], "disk-device", "{here}");
    assert_eq!(disk["in_sync"], false, "{here}");
    assert!(there.get("disks").is_none() && there["bytes"]["disks"].as_u64() > Some(0));
    let guest = migration.journal_folders()[0].clone();
    assert_eq!(guest, folder);
    let table = run(folder, &["status"]).stdout;
    assert_eq!(table.matches("copying disks").count(), 2, "{table}");
    let text = dashboard.get("/metrics");
    for sample in [
        "phase{", // The phase of both sides.
        "disk_copied_bytes_total{",
        "disk_in_sync{",
    ] {
        let begin = format!("hikkoshi_migration_{sample}");
        let mut lines = text.lines().filter(|line| line.starts_with(&begin));
        let expected = match sample {
            "phase{" => lines.any(|line| line.ends_with("phase=\"disks\"} 1")),
            "disk_in_sync{" => lines.any(|line| line.ends_with("disk=\"disk-device\"} 0")),
            _ => lines.any(|line| line.contains("disk=\"disk-device\"}")),
        };
        assert!(expected, "{sample}\n{text}");
    }
    check_metrics(&text).unwrap();
}

/// `hikkoshi status`, the metrics and a report show how far the disk is.
#[test]
#[ignore = "part of `make test-disks`"]
fn the_copy_of_a_disk_is_shown() {
    let env = TestEnv::new();
    let folder = run_folder(&env);
    let from = full(env.lab(), "from", DiskFormat::Raw, 24);
    let to = blank(env.lab(), "to", DiskFormat::Raw, 24);
    let mut guest = Guest::boot(&env, with_disk(guest(), "disk", &from));
    let dashboard = Dashboard::start(&folder);
    let there = with_disk(self::guest(), "disk", &to);
    let plan = MigrationPlan::new("hybrid")
        .migrate_args(&["--copy-disks=disk"])
        .journals_at(&folder, &folder)
        .destination_config(there.clone())
        .hold_at(Breakpoint::after(DiskBytes).nth(40));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    hikkoshi_tests::eventually("both sides to show the copy", || {
        let states = states(&folder);
        let shown = states.iter().all(|state| state["phase"] == "disks");
        let metrics = dashboard.get("/metrics");
        match shown && metrics.contains("disk=\"disk-device\"} 0") {
            true => Ok(()),
            false => Err(format!("{states:?}\n{metrics}")),
        }
    });
    assert_shown(&folder, &migration, &dashboard);
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
    guest.set_config(there);
    dashboard.end();
    // Afterwards.
    let text = run(&folder, &["status", "--all", "--json"]).stdout;
    assert!(text.contains(r#""in_sync":true"#), "{text}");
    let page = env.folder().join("report.html");
    let exit = report(&folder, &page, &[]);
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let mut html = String::new();
    File::open(&page)
        .unwrap()
        .read_to_string(&mut html)
        .unwrap();
    let (shown, _) = html
        .split_once("<script type=\"application/json\"")
        .unwrap();
    for text in ["Copied disks", "disk-device", "in sync", "Bytes for disks"] {
        assert!(shown.contains(text), "{text}");
    }
}
