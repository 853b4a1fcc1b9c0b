//! Guests whose disks are copied with them (`--copy-disks`): each host has an image of its own. The
//! guest writes to its disk all the time, and checks what it reads.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_lab::{
    Aio, Cache, Disk, DiskContent, DiskFormat, DiskImage, Mount, QemuVersion, Vm, VmConfig,
    Workload,
};
use hikkoshi_tests::{
    Breakpoint, Exits, FinishedMigration, Guest, MessageKind, MigrationPlan, Program, TestEnv,
    Transport, eventually, hikkoshi, log,
};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::copied_images::run;
use crate::dashboard::run_folder;

const DISK_MIB: u64 = 24;
const CONTENT: DiskContent = DiskContent::Blocks { mib: DISK_MIB };

/// A number that no other image has.
fn next_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("copied{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A guest that writes half of its accesses to the disk, some hundred times a second.
pub(crate) fn guest_with(disk: &Disk) -> VmConfig {
    let workload = Workload::verify(32)
        .rate(10_000)
        .option("every_ms", 200)
        .option("disk", "/dev/vda")
        .option("disk_threads", 2)
        .option("disk_chunk_kib", 16)
        .option("disk_mib", 4)
        .option("disk_write", 50)
        .option("disk_rate", 400);
    VmConfig::new().workload(workload).disk(disk.clone())
}

pub(crate) fn full_disk(env: &TestEnv, format: DiskFormat) -> Disk {
    Disk::new(DiskImage::new(env.lab(), &next_name(), format, CONTENT).unwrap())
}

pub(crate) fn blank_disk(env: &TestEnv, format: DiskFormat) -> Disk {
    blank_disk_of(env, None, format, DISK_MIB)
}

pub(crate) fn blank_disk_of(
    env: &TestEnv,
    folder: Option<&Path>,
    format: DiskFormat,
    mib: u64,
) -> Disk {
    let content = DiskContent::Blocks { mib };
    Disk::new(DiskImage::blank(env.lab(), folder, &next_name(), format, content).unwrap())
}

pub(crate) fn copying(mode: &'static str) -> MigrationPlan {
    MigrationPlan::new(mode).migrate_args(&["--copy-disks"])
}

/// Moves the guest from one disk to the other. When the destination is ready and the guest is
/// paused, both have the same content; from then on only the destination writes.
pub(crate) fn move_with_disk(guest: &mut Guest<'_>, plan: MigrationPlan, from: &Disk, to: &Disk) {
    let there = guest_with(to).version(guest.config().qemu_version());
    move_to(guest, plan, there, from, to);
}

/// Moves the guest to this destination, which has other disks, too.
fn move_to(guest: &mut Guest<'_>, plan: MigrationPlan, there: VmConfig, from: &Disk, to: &Disk) {
    let plan = plan
        .destination_config(there.clone())
        .hold_at(Breakpoint::before(Commit));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    let same = from.image().has_content_of(to.image()).unwrap();
    assert!(same, "the disks differ at the switch");
    migration.relay().release();
    let (exits, finished) = migration.wait();
    let source = guest.vm().clone();
    let report = guest.complete_migration(&exits, finished, "running");
    guest.set_config(there);
    let [copied] = &report.disks[..] else {
        panic!("{report:?}");
    };
    assert_eq!(copied.name, "disk0-device");
    // Without what the guest has written to meanwhile, which is a small part of the disk.
    let plausible = (DISK_MIB / 2) << 20..=(DISK_MIB + 1) << 20;
    assert!(
        copied.in_sync && plausible.contains(&copied.copied_bytes),
        "{copied:?}"
    );
    assert_eq!(copied.copied_bytes, copied.total_bytes, "{copied:?}");
    assert!(report.disk_bytes.unwrap() >= DISK_MIB << 20, "{report:?}");
    for vm in [&source, guest.vm()] {
        assert_nothing_left(vm);
    }
}

/// No job, node or export of a copy is in QEMU.
pub(crate) fn assert_nothing_left(vm: &Vm) {
    eventually("nothing to be left of the copies", || {
        let query = |command, arguments| vm.qmp().execute(command, arguments).unwrap();
        let left = [
            query("query-jobs", json!({})),
            query("query-named-block-nodes", json!({ "flat": true })),
            query("query-block-exports", json!({})),
        ];
        match left
            .iter()
            .any(|list| list.to_string().contains("hikkoshi-disk-"))
        {
            true => Err(format!("{left:?}")),
            false => Ok(()),
        }
    });
    assert_jobs_ended_while_paused(vm);
}

/// By QEMU's events, no job of a copy has ended while the guest ran: QEMU would not wait for writes
/// of the guest that the job is passing on. Returns how many have ended.
pub(crate) fn assert_jobs_ended_while_paused(vm: &Vm) -> usize {
    let events = vm.qmp().events();
    let (mut running, mut ended) = (true, 0);
    for event in &events {
        match &*event.name {
            "STOP" => running = false,
            "RESUME" => running = true,
            "JOB_STATUS_CHANGE" => {
                let text = |key: &str| event.data[key].as_str().unwrap();
                let ends = matches!(text("status"), "aborting" | "waiting" | "concluded");
                if ends && text("id").starts_with("hikkoshi-disk-") {
                    assert!(!running, "a job has ended while the guest ran: {event:?}");
                    ended += usize::from(text("status") == "concluded");
                }
            }
            _ => {}
        }
    }
    ended
}

/// Both engines have reported this, and the guest has stayed with its own disk.
pub(crate) fn assert_stayed(
    guest: &mut Guest<'_>,
    (exits, finished): (Exits, FinishedMigration),
    texts: &[&str],
    what: &str,
) {
    exits.assert_source(1, texts);
    guest.assert_stayed(finished, what);
    assert_nothing_left(guest.vm());
}

#[test]
fn a_disk_is_copied() {
    disks_are_copied(&[("hybrid", DiskFormat::Qcow2)]);
}

#[test]
#[ignore = "one of its kind runs in CI: make test-disks"]
fn disks_are_copied_in_the_other_modes() {
    disks_are_copied(&[
        ("precopy", DiskFormat::Raw),
        ("postcopy", DiskFormat::Qcow2),
    ]);
}

/// Moves a guest with a raw disk by each of these modes in turn, to a disk of this format.
fn disks_are_copied(moves: &[(&'static str, DiskFormat)]) {
    let env = TestEnv::new();
    let mut from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for &(mode, format) in moves {
        let to = blank_disk(&env, format);
        move_with_disk(&mut guest, copying(mode), &from, &to);
        from = to;
    }
}

/// With this limit the copy takes minutes.
#[test]
#[ignore = "one of its kind runs in CI: make test-disks"]
fn the_limit_of_a_copy_is_lifted_while_it_runs() {
    for version in QemuVersion::OLDEST_AND_NEWEST {
        let env = TestEnv::new();
        let folder = run_folder(&env);
        let (from, to) = (
            full_disk(&env, DiskFormat::Raw),
            blank_disk(&env, DiskFormat::Raw),
        );
        let there = guest_with(&to).version(version);
        let mut guest = Guest::boot(&env, guest_with(&from).version(version));
        let plan = MigrationPlan::new("hybrid")
            .migrate_args(&["--copy-disks", "--bandwidth", "100K"])
            .journals_at(&folder, &folder)
            .destination_config(there.clone());
        let migration = guest.start_migration(&plan);
        migration.migrate.wait_stderr("copying disks: ");
        let jobs = guest.vm().qmp().execute("query-block-jobs", json!({}));
        let job = &jobs.unwrap()[0];
        assert_eq!(job["status"], "running", "{job}");
        assert_eq!(job["speed"], 100_000, "{job}");
        run(&folder, &["set", "--bandwidth", "none"]);
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
        guest.set_config(there);
    }
}

/// What the guest has written to its disks, in bytes.
fn written_bytes(vm: &Vm) -> u64 {
    let disks = vm.qmp().execute("query-blockstats", json!({})).unwrap();
    let of = |disk: &serde_json::Value| disk["stats"]["wr_bytes"].as_u64();
    disks.as_array().unwrap().iter().filter_map(of).sum()
}

/// The limit is far below what the guest writes. Its writes do not wait for it, and the copy ends
/// in the time that its content takes: what the guest writes is at both sides at once, and is not
/// copied again.
#[test]
#[ignore = "one of its kind runs in CI: make test-disks"]
fn writes_of_the_guest_do_not_wait_for_the_limit_of_the_bandwidth() {
    for version in QemuVersion::OLDEST_AND_NEWEST {
        let env = TestEnv::new();
        let folder = run_folder(&env);
        let (from, to) = (
            full_disk(&env, DiskFormat::Raw),
            blank_disk(&env, DiskFormat::Raw),
        );
        let mut guest = Guest::boot(&env, fast_writer(&from, version));
        let plan = MigrationPlan::new("hybrid")
            .migrate_args(&["--copy-disks", "--bandwidth", "1MiB"])
            .journals_at(&folder, &folder)
            .destination_config(fast_writer(&to, version))
            .hold_at(Breakpoint::before(Commit));
        let migration = guest.start_migration(&plan);
        migration.migrate.wait_stderr("copying disks: ");
        let before = written_bytes(guest.vm());
        migration.migrate.wait_stderr("pre-copy, round 1");
        let written = written_bytes(guest.vm()) - before;
        log(format!(
            "{version:?}: the guest has written {} MiB while {DISK_MIB} MiB were copied",
            written >> 20
        ));
        // In the time in which the limit allows to send that much, without the first 16 MiB.
        assert!(written > DISK_MIB << 20, "{written}");
        run(&folder, &["set", "--bandwidth", "none"]);
        migration.wait_held();
        let same = from.image().has_content_of(to.image()).unwrap();
        assert!(same, "the disks differ at the switch");
        migration.relay().release();
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
        guest.set_config(fast_writer(&to, version));
    }
}

/// A guest that writes some 12 MiB a second to its disk.
fn fast_writer(disk: &Disk, version: QemuVersion) -> VmConfig {
    let workload = Workload::verify(32)
        .rate(1000)
        .option("every_ms", 200)
        .option("disk", "/dev/vda")
        .option("disk_threads", 2)
        .option("disk_chunk_kib", 64)
        .option("disk_mib", 8)
        .option("disk_write", 50)
        .option("disk_rate", 400);
    let config = VmConfig::new().workload(workload).disk(disk.clone());
    config.version(version)
}

/// Prints what QEMU measures of the guest's writes, until then or for 10 s.
#[allow(clippy::cast_precision_loss)] // for people
fn measure_writes(vm: &Vm, what: &str, until: &dyn Fn(&Vm) -> bool) {
    const BOUNDS_MS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 500, 2000];
    let query = |command, arguments| vm.qmp().execute(command, arguments).unwrap();
    let device = query("query-block", json!({}))[0]["qdev"].clone();
    let bounds = BOUNDS_MS.map(|ms| ms * 1_000_000);
    let histogram = json!({ "id": device, "boundaries-write": bounds });
    query("block-latency-histogram-set", histogram);
    let stats = || query("query-blockstats", json!({}))[0]["stats"].clone();
    let (before, begun) = (stats(), Instant::now());
    while !until(vm) && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (after, took) = (stats(), begun.elapsed());
    let of = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    let writes = of("wr_operations");
    log(format!(
        "{what}: {writes} writes in {took:.1?}, mean {:.2} ms, up to {BOUNDS_MS:?} ms: {}",
        of("wr_total_time_ns") as f64 / 1e6 / writes.max(1) as f64,
        after["wr_latency_histogram"]["bins"]
    ));
}

#[test]
#[ignore = "prints what docs/copying-disks.md shows; part of `make test-disks`"]
fn what_a_write_of_the_guest_takes_while_its_disk_is_copied() {
    let content = DiskContent::Blocks { mib: 192 };
    for limit in ["none", "10MiB", "1MiB"] {
        let env = TestEnv::new();
        let folder = run_folder(&env);
        let image = DiskImage::new(env.lab(), &next_name(), DiskFormat::Raw, content).unwrap();
        let from = Disk::new(image);
        let there = guest_with(&blank_disk_of(&env, None, DiskFormat::Raw, 192));
        let mut guest = Guest::boot(&env, guest_with(&from));
        measure_writes(guest.vm(), "not copied", &|_| false);
        let plan = MigrationPlan::new("hybrid")
            .migrate_args(&["--copy-disks", "--bandwidth", limit])
            .journals_at(&folder, &folder)
            .destination_config(there.clone());
        let migration = guest.start_migration(&plan);
        let status = |vm: &Vm| {
            let jobs = vm.qmp().execute("query-block-jobs", json!({})).unwrap();
            jobs[0]["status"].clone()
        };
        eventually("the copy to begin", || match status(guest.vm()) {
            running if running == "running" => Ok(()),
            other => Err(other.to_string()),
        });
        let what = format!("copied, limit {limit}");
        measure_writes(guest.vm(), &what, &|vm| status(vm) != "running");
        run(&folder, &["set", "--bandwidth", "none"]);
        let (exits, finished) = migration.wait();
        guest.complete_migration(&exits, finished, "running");
        guest.set_config(there);
    }
}

/// Disks are copied in each mode by QEMU 7.2.
#[test]
#[ignore = "part of `make test-disks`"]
fn disks_are_copied_by_the_older_qemu() {
    let env = TestEnv::new();
    let mut from = full_disk(&env, DiskFormat::Qcow2);
    let config = guest_with(&from).version(QemuVersion::V7_2);
    let mut guest = Guest::boot(&env, config);
    for mode in ["precopy", "postcopy", "hybrid"] {
        let to = blank_disk(&env, DiskFormat::Raw);
        move_with_disk(&mut guest, copying(mode), &from, &to);
        from = to;
    }
}

/// And with a limit. The guest is paused, as nobody can stop an encrypted move at the switch: so
/// both images can be compared afterwards.
#[test]
#[ignore = "part of `make test-disks`"]
fn disks_are_copied_over_tls() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    guest.vm().qmp().execute("stop", json!({})).unwrap();
    let there = guest_with(&to);
    let plan = copying("hybrid")
        .transport(Transport::Invitation("127.0.0.1:0".into()))
        .migrate_args(&["--bandwidth", "40M"])
        .receive_args(&["--invite"])
        .destination_config(there.clone());
    let (exits, finished) = guest.start_migration(&plan).wait();
    let report = guest.complete_migration(&exits, finished, "paused");
    guest.set_config(there);
    assert_eq!(report.disks.len(), 1, "{report:?}");
    assert!(from.image().has_content_of(to.image()).unwrap());
    assert_nothing_left(guest.vm());
    guest.vm().qmp().execute("cont", json!({})).unwrap();
    guest.assert_healthy();
}

/// The disk of a guest that its owner has paused.
#[test]
#[ignore = "part of `make test-disks`"]
fn the_disk_of_a_paused_guest_is_copied() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Qcow2);
    let mut guest = Guest::boot(&env, guest_with(&from));
    guest.vm().qmp().execute("stop", json!({})).unwrap();
    let there = guest_with(&to);
    let plan = copying("hybrid").destination_config(there.clone());
    let (exits, finished) = guest.start_migration(&plan).wait();
    guest.complete_migration(&exits, finished, "paused");
    guest.set_config(there);
    assert!(from.image().has_content_of(to.image()).unwrap());
    guest.vm().qmp().execute("cont", json!({})).unwrap();
    guest.assert_healthy();
}

/// Of two disks, one is copied, and the other one is handed over.
#[test]
#[ignore = "part of `make test-disks`"]
fn only_the_named_disk_is_copied() {
    let env = TestEnv::new();
    let mut from = full_disk(&env, DiskFormat::Raw);
    let shared = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from).disk(shared.clone()));
    for arguments in [
        &["--copy-disks=disk0-device"][..],
        &["--copy-disks", "--shared-disks=disk1-device"],
    ] {
        let to = blank_disk(&env, DiskFormat::Raw);
        let there = guest_with(&to).disk(shared.clone());
        let plan = MigrationPlan::new("hybrid").migrate_args(arguments);
        move_to(&mut guest, plan, there, &from, &to);
        from = to;
    }
}

/// A guest whose disks do not fit is refused before the destination's QEMU is used up: the same
/// `receive` takes it when it asks for less.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_refused_guest_leaves_the_destination_to_the_next_one() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let other = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from).disk(other.clone()));
    let plan = copying("hybrid").destination_config(guest_with(&to).disk(other));
    let mut migration = guest.start_migration(&plan);
    let text = "the disk disk1-device has the same image at both sides";
    migration.migrate.wait().assert(1, &[text]);
    let mut again = Command::new(hikkoshi());
    again
        .args(["migrate", migration.listen_address()])
        .arg("--qmp")
        .arg(guest.vm().qmp_path())
        .arg("--journal")
        .arg(&migration.journal_folders()[0])
        .args(["--copy-disks=disk0-device", "--mode", "hybrid"]);
    migration.migrate = Program::start("migrate", again);
    let (exits, finished) = migration.wait();
    assert_eq!(exits.codes(), [Some(0), Some(0)], "{exits:?}");
    assert!(exits.receive.stderr.contains(text), "{exits:?}");
    guest.move_to_destination(finished, "after a refusal");
    // The guest does not use the other one.
    guest.set_config(guest_with(&to));
}

/// The disk's requests are made by a thread of their own.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_disk_with_an_iothread_is_copied() {
    for version in QemuVersion::ALL {
        let env = TestEnv::new();
        let mut from = full_disk(&env, DiskFormat::Raw).iothread();
        let mut guest = Guest::boot(&env, guest_with(&from).version(version));
        for mode in ["hybrid", "precopy"] {
            let to = blank_disk(&env, DiskFormat::Qcow2).iothread();
            move_with_disk(&mut guest, copying(mode), &from, &to);
            from = to;
        }
    }
}

#[test]
#[ignore = "part of `make test-disks`"]
fn disks_that_cannot_be_copied_are_refused() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let small = blank_disk_of(&env, None, DiskFormat::Raw, DISK_MIB / 2);
    for (plan, text) in [
        (copying("hybrid"), "has the same image at both sides"),
        (
            copying("hybrid").destination_config(guest_with(&small)),
            "give the destination an image of the same size",
        ),
    ] {
        let outcome = guest.start_migration(&plan).wait_for_source_first();
        assert_stayed(&mut guest, outcome, &[text, "runs at the source"], text);
    }
    // Before it connects to a destination.
    let plan = MigrationPlan::new("hybrid").migrate_args(&["--copy-disks=sda"]);
    let mut migration = guest.start_migration(&plan);
    migration.migrate.wait();
    migration.receive.interrupt();
    let text = "the guest has no disk 'sda' with a medium; its disks are: disk0-device";
    assert_stayed(&mut guest, migration.wait(), &[text], text);
}

/// The owner of the destination's QEMU uses its NBD server: the move fails, and the server stays.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_server_of_another_program_is_not_stopped() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let to = blank_disk(&env, DiskFormat::Raw);
    let plan = copying("hybrid")
        .destination_config(guest_with(&to))
        .hold_at(Breakpoint::before(Offer));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    let there = Arc::clone(&migration.destination);
    let path = env.folder().join("nbd");
    let address = json!({ "addr": { "type": "unix", "data": { "path": path } } });
    there.qmp().execute("nbd-server-start", address).unwrap();
    migration.relay().release();
    let outcome = migration.wait_for_source_first();
    let text = "NBD server already running";
    assert_stayed(&mut guest, outcome, &[text, "runs at the source"], text);
    // QEMU refuses this if there is none.
    there.qmp().execute("nbd-server-stop", json!({})).unwrap();
}

/// The destination's file system is full: QEMU's error is reported.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_full_disk_at_the_destination_is_reported() {
    let env = TestEnv::new();
    let small = Mount::tmpfs(env.lab(), "small", 8).unwrap();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk_of(&env, Some(small.path()), DiskFormat::Raw, DISK_MIB)
        .cache(Cache::Writeback)
        .aio(Aio::Threads);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let plan = copying("hybrid").destination_config(guest_with(&to));
    let outcome = guest.start_migration(&plan).wait();
    let texts = ["No space left on device", "free space for the disk"];
    assert_stayed(
        &mut guest,
        outcome,
        &texts,
        "the destination's disk is full",
    );
}
