//! Copies of disks that fail or are given up while the guest writes as fast as it can. QEMU must
//! not end such a job while the guest runs, and whoever pauses the guest for that resumes it.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::copied::{
    assert_jobs_ended_while_paused, assert_nothing_left, blank_disk, copying, full_disk,
};
use crate::recovery::journals::{children, run};
use MessageKind::*;
use hikkoshi_lab::{Disk, DiskFormat, QemuVersion, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, InjectedFault, MessageKind, MigrationPlan, TestEnv, left_in,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// A guest that has eight reads or writes of its disk in progress all the time.
fn busy_guest_with(disk: &Disk) -> VmConfig {
    let workload = Workload::verify(32)
        .rate(10_000)
        .option("every_ms", 200)
        .option("disk", "/dev/vda")
        .option("disk_threads", 8)
        .option("disk_chunk_kib", 16)
        .option("disk_mib", 4)
        .option("disk_write", 90);
    VmConfig::new().workload(workload).disk(disk.clone())
}

/// While much, and when everything, is copied.
fn steps() -> [(&'static str, Breakpoint); 5] {
    [
        ("hybrid", Breakpoint::after(DiskBytes).nth(10)),
        ("precopy", Breakpoint::after(DiskBytes).nth(60)),
        ("postcopy", Breakpoint::before(Discarded)),
        ("precopy", Breakpoint::after(Pages).nth(10)),
        ("hybrid", Breakpoint::after(Pages).nth(40)),
    ]
}

fn give_up_twenty_copies(version: QemuVersion) {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, busy_guest_with(&from).version(version));
    let mut given_up = 0;
    for (mode, at) in steps() {
        for fault in [
            Some(InjectedFault::LinksCut),
            Some(InjectedFault::DestinationKilled),
            Some(InjectedFault::SourceKilled),
            None,
        ] {
            let to = blank_disk(&env, DiskFormat::Raw);
            let there = busy_guest_with(&to).version(version);
            let plan = copying(mode).destination_config(there);
            match fault {
                Some(fault) => fault.interrupt(&mut guest, plan, at),
                None => kill_destination_qemu(&mut guest, plan, mode, at),
            }
            assert_nothing_left(guest.vm());
            given_up += 1;
        }
    }
    assert_eq!(assert_jobs_ended_while_paused(guest.vm()), given_up);
    let to = blank_disk(&env, DiskFormat::Raw);
    let there = busy_guest_with(&to).version(version);
    guest.migrate(&copying("hybrid").destination_config(there.clone()));
    guest.set_config(there);
}

/// Which of its connections fails first, and what the engines report, is not defined.
fn kill_destination_qemu(guest: &mut Guest<'_>, plan: MigrationPlan, mode: &str, at: Breakpoint) {
    let migration = guest.start_migration(&plan.hold_at(at));
    migration.wait_held();
    migration.destination.kill();
    migration.relay().release();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["runs at the source"]);
    let what = format!("{mode}, destination QEMU killed {at}");
    guest.assert_stayed(finished, &what);
}

#[test]
#[ignore = "part of `make test-disks`"]
fn a_guest_that_writes_survives_many_copies_that_fail() {
    give_up_twenty_copies(QemuVersion::V10_0);
}

#[test]
#[ignore = "part of `make test-disks`"]
fn a_guest_that_writes_survives_many_copies_that_fail_in_the_older_qemu() {
    give_up_twenty_copies(QemuVersion::V7_2);
}

/// The engine and its guard were killed, the guard between the two commands that pause the guest
/// and resume it: the next engine resumes it. Without the mark its owner has paused it.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_guest_that_was_paused_for_giving_up_its_copies_is_resumed() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, busy_guest_with(&from));
    let journal = env.folder().join("journal");
    for is_marked in [true, false] {
        let to = blank_disk(&env, DiskFormat::Raw);
        let plan = copying("hybrid")
            .destination_config(busy_guest_with(&to))
            .hold_at(Breakpoint::after(DiskBytes).nth(40));
        let mut migration = guest.start_migration(&plan);
        migration.wait_held();
        for child in children(migration.migrate.pid()) {
            kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
        }
        migration.migrate.kill();
        migration.relay().cut();
        let qmp = guest.vm().qmp();
        if is_marked {
            let mark = json!({
                "qom-type": "secret", "id": "hikkoshi-ending-copies", "data": "paused",
            });
            qmp.execute("object-add", mark).unwrap();
        }
        qmp.execute("stop", json!({})).unwrap();
        let resumed = run(&["migrate", "--resume"], guest.vm().qmp_path(), &journal);
        let expected = if is_marked { "running" } else { "paused" };
        let status = guest.vm().status().unwrap();
        assert_eq!(status, expected, "{resumed:?}");
        if !is_marked {
            qmp.execute("cont", json!({})).unwrap();
        }
        let (_, finished) = migration.wait();
        guest.assert_stayed(finished, "paused for giving up its copies");
        assert_nothing_left(guest.vm());
        let objects = json!({ "path": "/objects" });
        let objects = guest.vm().qmp().execute("qom-list", objects).unwrap();
        assert!(!objects.to_string().contains("hikkoshi"), "{objects}");
        assert_eq!(left_in(&journal), Vec::<String>::new());
    }
}
