//! Guests whose disks are copied with them (`--copy-disks`): each host has an image of its own. The
//! guest writes to its disk all the time, and checks what it reads.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_lab::{
    Aio, Cache, Disk, DiskContent, DiskFormat, DiskImage, Mount, QemuVersion, Vm, VmConfig,
    Workload,
};
use hikkoshi_tests::{
    Breakpoint, Exits, FinishedMigration, Guest, InjectedFault, MessageKind, MigrationPlan,
    TestEnv, Transport, Victim, eventually, left_in,
};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const DISK_MIB: u64 = 24;
const CONTENT: DiskContent = DiskContent::Blocks { mib: DISK_MIB };

/// A number that no other image has.
fn next_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("copied{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A guest that writes half of its accesses to the disk, some hundred times a second.
fn guest_with(disk: &Disk) -> VmConfig {
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

fn full_disk(env: &TestEnv, format: DiskFormat) -> Disk {
    Disk::new(DiskImage::new(env.lab(), &next_name(), format, CONTENT).unwrap())
}

fn blank_disk(env: &TestEnv, format: DiskFormat) -> Disk {
    blank_disk_of(env, None, format, DISK_MIB)
}

fn blank_disk_of(env: &TestEnv, folder: Option<&Path>, format: DiskFormat, mib: u64) -> Disk {
    let content = DiskContent::Blocks { mib };
    Disk::new(DiskImage::blank(env.lab(), folder, &next_name(), format, content).unwrap())
}

fn copying(mode: &'static str) -> MigrationPlan {
    MigrationPlan::new(mode).migrate_args(&["--copy-disks"])
}

/// Moves the guest from one disk to the other. When the destination is ready and the guest is
/// paused, both have the same content; from then on only the destination writes.
fn move_with_disk(guest: &mut Guest<'_>, plan: MigrationPlan, from: &Disk, to: &Disk) {
    let there = guest_with(to).version(guest.config().qemu_version());
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
    assert!(
        copied.in_sync && copied.copied_bytes >= DISK_MIB << 20,
        "{copied:?}"
    );
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
}

/// Both engines have reported this, and the guest has stayed with its own disk.
fn assert_stayed(
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
fn disks_are_copied_in_each_mode() {
    let env = TestEnv::new();
    let mut from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for (mode, format) in [
        ("hybrid", DiskFormat::Qcow2),
        ("precopy", DiskFormat::Raw),
        ("postcopy", DiskFormat::Qcow2),
    ] {
        let to = blank_disk(&env, format);
        move_with_disk(&mut guest, copying(mode), &from, &to);
        from = to;
    }
}

/// The same with QEMU 7.2, and over TLS with a limit.
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

#[test]
#[ignore = "part of `make test-disks`"]
fn disks_are_copied_over_tls() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let there = guest_with(&to);
    let plan = copying("hybrid")
        .transport(Transport::Invitation("127.0.0.1:0".into()))
        .migrate_args(&["--bandwidth", "40M"])
        .receive_args(&["--invite"])
        .destination_config(there.clone());
    let report = guest.migrate(&plan);
    guest.set_config(there);
    assert_eq!(report.disks.len(), 1, "{report:?}");
    assert_nothing_left(guest.vm());
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
    let (from, to) = (
        full_disk(&env, DiskFormat::Raw),
        blank_disk(&env, DiskFormat::Raw),
    );
    let shared = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from).disk(shared.clone()));
    let there = guest_with(&to).disk(shared);
    let plan = MigrationPlan::new("hybrid")
        .migrate_args(&["--copy-disks=disk0-device"])
        .destination_config(there.clone());
    let report = guest.migrate(&plan);
    guest.set_config(there);
    assert_eq!(report.disks.len(), 1, "{report:?}");
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
            "give it an image of the same size",
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
        .hold_at(Breakpoint::before(CopiesDisks));
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

/// Injects a fault at each of these steps. The guest stays with its own disk each time, and is
/// moved in the end.
fn inject_at_each(fault: InjectedFault, steps: &[(&'static str, Breakpoint)]) {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for &(mode, at) in steps {
        let to = blank_disk(&env, DiskFormat::Qcow2);
        let plan = copying(mode).destination_config(guest_with(&to));
        fault.interrupt(&mut guest, plan, at);
        assert_nothing_left(guest.vm());
        let left = left_in(&env.folder().join("journal"));
        let left: Vec<_> = left
            .iter()
            // That of a destination that does not know where the guest is.
            .filter(|name| !name.starts_with("destination-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let to = blank_disk(&env, DiskFormat::Raw);
    move_with_disk(&mut guest, copying("hybrid"), &from, &to);
}

/// While the disk is copied, when it is complete, and in the switchover.
fn steps() -> Vec<(&'static str, Breakpoint)> {
    vec![
        ("hybrid", Breakpoint::before(Accept)),
        ("hybrid", Breakpoint::before(HelloDisk)),
        ("precopy", Breakpoint::before(DiskBytes)),
        ("hybrid", Breakpoint::after(DiskBytes).nth(2)),
        ("postcopy", Breakpoint::after(DiskBytes).nth(40)),
        ("hybrid", Breakpoint::after(Pages).nth(10)),
        ("postcopy", Breakpoint::before(Discarded)),
        ("precopy", Breakpoint::before(DeviceStateChunk)),
        ("hybrid", Breakpoint::before(Switch)),
        ("postcopy", Breakpoint::before(Ready)),
    ]
}

#[test]
#[ignore = "part of `make test-disks`"]
fn source_engine_killed_while_disks_are_copied() {
    inject_at_each(InjectedFault::SourceKilled, &steps());
}

#[test]
#[ignore = "part of `make test-disks`"]
fn destination_engine_killed_while_disks_are_copied() {
    inject_at_each(InjectedFault::DestinationKilled, &steps());
}

#[test]
#[ignore = "part of `make test-disks`"]
fn links_cut_while_disks_are_copied() {
    inject_at_each(InjectedFault::LinksCut, &steps());
}

#[test]
#[ignore = "part of `make test-disks`"]
fn destination_qemu_killed_while_disks_are_copied() {
    let steps = [
        ("hybrid", Breakpoint::after(DiskBytes).nth(40)),
        ("hybrid", Breakpoint::after(Pages).nth(10)),
        ("precopy", Breakpoint::before(Switch)),
    ];
    inject_at_each(InjectedFault::DestinationQemuKilled, &steps);
}

/// From *commit* on, nothing of the disks is left to do.
#[test]
#[ignore = "part of `make test-disks`"]
fn engines_killed_in_postcopy_after_disks_were_copied() {
    let env = TestEnv::new();
    let mut from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for (victim, mode) in [
        (Victim::Source, "postcopy"),
        (Victim::Destination, "hybrid"),
        (Victim::Links, "postcopy"),
    ] {
        let to = blank_disk(&env, DiskFormat::Raw);
        let there = guest_with(&to);
        let plan = copying(mode).destination_config(there.clone());
        victim.interrupt(&mut guest, plan, Breakpoint::after(GuestResumed));
        guest.set_config(there);
        assert_nothing_left(guest.vm());
        from = to;
    }
    drop(from);
}

/// The source's QEMU ends while its disk is copied: the guest is gone, and the destination has not
/// run it.
#[test]
#[ignore = "part of `make test-disks`"]
fn source_qemu_killed_while_disks_are_copied() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Raw);
    let guest_config = guest_with(&from);
    let mut guest = Guest::boot(&env, guest_config);
    let plan = copying("hybrid")
        .destination_config(guest_with(&to))
        .hold_at(Breakpoint::after(DiskBytes).nth(40));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    guest.vm().kill();
    migration.relay().release();
    let (exits, finished) = migration.wait();
    for code in exits.codes() {
        assert_eq!(code, Some(1), "{exits:?}");
    }
    assert!(
        !exits.migrate.stderr.contains("runs at the source"),
        "{exits:?}"
    );
    hikkoshi_tests::assert_not_running(&finished.destination);
}
