//! Faults while disks are copied: engines, links and QEMUs that end, and a destination that hangs.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::copied::{
    assert_nothing_left, assert_stayed, blank_disk, copying, full_disk, guest_with, move_with_disk,
};
use crate::recovery::journals::children;
use MessageKind::*;
use hikkoshi_lab::{Disk, DiskFormat, HostPair, RateLimit, Vm};
use hikkoshi_tests::{
    Breakpoint, Guest, InjectedFault, MessageKind, Migration, MigrationPlan, Program, TestEnv,
    Transport, Victim, hikkoshi, left_in,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

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
        // The last request of the copy: the guest is paused, and the jobs have not ended.
        ("hybrid", Breakpoint::before(DiskFlush).nth(2)),
        ("precopy", Breakpoint::after(DiskFlush).nth(2)),
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
        ("postcopy", Breakpoint::before(DiskFlush).nth(2)),
        ("precopy", Breakpoint::before(Switch)),
    ];
    inject_at_each(InjectedFault::DestinationQemuKilled, &steps);
}

/// While the second of two disks is copied, when both are complete, and in the last step.
#[test]
#[ignore = "part of `make test-disks`"]
fn faults_while_two_disks_are_copied() {
    let env = TestEnv::new();
    let disks = |disk: fn(&TestEnv, DiskFormat) -> Disk| {
        [DiskFormat::Raw, DiskFormat::Qcow2].map(|format| disk(&env, format))
    };
    let config = |[one, two]: &[Disk; 2]| guest_with(one).disk(two.clone());
    let from = disks(full_disk);
    let mut guest = Guest::boot(&env, config(&from));
    for (fault, mode, at) in [
        (
            InjectedFault::LinksCut,
            "hybrid",
            Breakpoint::after(DiskBytes).nth(100),
        ),
        (
            InjectedFault::DestinationQemuKilled,
            "precopy",
            Breakpoint::after(DiskBytes).nth(150),
        ),
        (
            InjectedFault::SourceKilled,
            "postcopy",
            Breakpoint::after(DiskBytes).nth(120),
        ),
        (
            InjectedFault::DestinationKilled,
            "hybrid",
            Breakpoint::after(Pages).nth(10),
        ),
        (
            InjectedFault::LinksCut,
            "precopy",
            Breakpoint::before(DiskFlush).nth(4),
        ),
        (
            InjectedFault::LinksCut,
            "hybrid",
            Breakpoint::before(Switch),
        ),
    ] {
        let to = disks(blank_disk);
        let plan = copying(mode).destination_config(config(&to));
        fault.interrupt(&mut guest, plan, at);
        assert_nothing_left(guest.vm());
    }
    let to = disks(blank_disk);
    let there = config(&to);
    let plan = copying("hybrid")
        .destination_config(there.clone())
        .hold_at(Breakpoint::before(Commit));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    for (from, to) in from.iter().zip(&to) {
        assert!(from.image().has_content_of(to.image()).unwrap());
    }
    migration.relay().release();
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");
    guest.set_config(there);
    assert_eq!(report.disks.len(), 2, "{report:?}");
}

/// `receive` was killed while disks were copied: the next one on that QEMU stops its server.
#[test]
#[ignore = "part of `make test-disks`"]
fn the_server_of_a_killed_engine_is_stopped_by_the_next() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let to = blank_disk(&env, DiskFormat::Raw);
    let plan = copying("hybrid")
        .destination_config(guest_with(&to))
        .hold_at(Breakpoint::after(DiskBytes).nth(20));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.receive.kill();
    migration.relay().cut();
    let there = Arc::clone(&migration.destination);
    let exports = || {
        let exports = there.qmp().execute("query-block-exports", json!({}));
        exports.unwrap().as_array().unwrap().len()
    };
    assert_eq!(exports(), 1);
    let mut receive = Command::new(hikkoshi());
    receive
        .args(["receive", "--listen", &env.unused_socket(), "--qmp"])
        .arg(there.qmp_path())
        .arg("--journal")
        .arg(&migration.journal_folders()[1]);
    let exit = Program::start("receive", receive).wait();
    let texts = [
        "ended the server of disks that a killed engine has left",
        "this QEMU was sent a guest before",
        "restart it",
    ];
    exit.assert(1, &texts);
    assert_eq!(exports(), 0);
    let what = "the destination's engine was killed";
    assert_stayed(&mut guest, migration.wait(), &["runs at the source"], what);
}

/// The engine and its guard were killed, and its journal is gone: the next `migrate` ends the
/// copies that are left, while the guest is paused.
#[test]
#[ignore = "part of `make test-disks`"]
fn copies_that_a_killed_engine_has_left_are_ended_by_the_next() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let journal = env.folder().join("journal");
    let to = blank_disk(&env, DiskFormat::Raw);
    let plan = copying("hybrid")
        .destination_config(guest_with(&to))
        .hold_at(Breakpoint::after(DiskBytes).nth(40));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    for child in children(migration.migrate.pid()) {
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    }
    migration.migrate.kill();
    migration.relay().cut();
    for name in left_in(&journal) {
        if name.starts_with("source-") {
            std::fs::remove_file(journal.join(name)).unwrap();
        }
    }
    let (_, finished) = migration.wait();
    drop(finished);
    let to = blank_disk(&env, DiskFormat::Raw);
    move_with_disk(&mut guest, copying("hybrid"), &from, &to);
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

/// How long a destination may not answer in these tests.
const STALL: [&str; 2] = ["--stall-timeout", "3s"];

/// What the source prints then.
const STALLED: [&str; 3] = [
    "copying the disk disk0-device: the destination has answered nothing for 3 s",
    "QEMU or the storage hangs there",
    "runs at the source",
];

fn stop(vm: &Vm) {
    let pid = Pid::from_raw(i32::try_from(vm.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
}

/// Where a destination stops in these tests: while the connection is set up, while the disk is
/// copied, when it is complete and memory is copied, and in the last step with the guest paused.
fn hanging_steps() -> [(&'static str, Breakpoint); 4] {
    [
        ("precopy", Breakpoint::before(DiskBytes)),
        ("postcopy", Breakpoint::after(DiskBytes).nth(40)),
        ("hybrid", Breakpoint::after(Pages).nth(10)),
        ("hybrid", Breakpoint::before(DiskFlush).nth(2)),
    ]
}

/// Stops something at each of these steps. The guest, whose writes wait for it, continues with its
/// own disk, and is moved in the end.
fn hang_at_each(stop: impl Fn(&Migration), steps: &[(&'static str, Breakpoint)]) {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for &(mode, at) in steps {
        let to = blank_disk(&env, DiskFormat::Raw);
        let plan = copying(mode)
            .migrate_args(&STALL)
            .destination_config(guest_with(&to))
            .hold_at(at);
        let mut migration = guest.start_migration(&plan);
        migration.wait_held();
        stop(&migration);
        migration.relay().release();
        migration.migrate.wait();
        // Both end now.
        migration.destination.kill();
        migration.receive.kill();
        let what = format!("{mode}, stopped {at}");
        assert_stayed(&mut guest, migration.wait(), &STALLED, &what);
    }
    let to = blank_disk(&env, DiskFormat::Raw);
    move_with_disk(&mut guest, copying("hybrid"), &from, &to);
}

#[test]
#[ignore = "part of `make test-disks`"]
fn a_destination_qemu_that_hangs_does_not_stop_the_guest() {
    hang_at_each(|migration| stop(&migration.destination), &hanging_steps());
}

#[test]
#[ignore = "part of `make test-disks`"]
fn a_destination_engine_that_hangs_does_not_stop_the_guest() {
    hang_at_each(
        |migration| migration.receive.signal(Signal::STOP),
        &hanging_steps()[1..],
    );
}

/// The guest is paused, and the last step of the copy waits: a cancellation is heard.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_move_is_cancelled_while_the_copy_of_a_disk_waits() {
    let env = TestEnv::new();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for (mode, at) in hanging_steps() {
        let to = blank_disk(&env, DiskFormat::Raw);
        let plan = copying(mode)
            .destination_config(guest_with(&to))
            .migrate_args(&["--stall-timeout", "1h"])
            .hold_at(at);
        let mut migration = guest.start_migration(&plan);
        migration.wait_held();
        stop(&migration.destination);
        migration.migrate.interrupt();
        migration.migrate.wait();
        migration.destination.kill();
        migration.relay().release();
        let what = format!("{mode}, cancelled {at}");
        let texts = ["cancelled", "runs at the source"];
        assert_stayed(&mut guest, migration.wait(), &texts, &what);
    }
}

/// The queue is shorter than any packet's transmission time, so all packets are dropped.
const NOTHING: RateLimit = RateLimit {
    rate_bits: 1000,
    burst_bytes: 1,
    latency: Duration::from_millis(1),
};

fn across(line: &HostPair, mode: &'static str) -> MigrationPlan {
    let address = format!("{}:7100", HostPair::DESTINATION);
    copying(mode)
        .between_namespaces(line.source(), line.destination())
        .transport(Transport::Address(address))
}

/// A line on which all packets are lost, and neither host is notified.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_line_that_fails_without_a_sign_does_not_stop_the_guest() {
    let env = TestEnv::new();
    // So that the copy takes a few seconds.
    let slow = RateLimit {
        rate_bits: 40_000_000,
        ..RateLimit::gbit(1)
    };
    let mut line = HostPair::new(Some(slow)).unwrap();
    let from = full_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    for (mode, sign) in [
        ("hybrid", "copying disks: "),
        ("precopy", "pre-copy, round 1"),
    ] {
        let to = blank_disk(&env, DiskFormat::Raw);
        let plan = across(&line, mode)
            .migrate_args(&STALL)
            .receive_args(&STALL)
            .destination_config(guest_with(&to));
        let migration = guest.start_migration(&plan);
        migration.migrate.wait_stderr(sign);
        line.set_rate_limit(Some(NOTHING)).unwrap();
        let outcome = migration.wait_for_source_first();
        line.set_rate_limit(Some(slow)).unwrap();
        assert_stayed(&mut guest, outcome, &["runs at the source"], sign);
    }
}

/// A line that carries what QEMU has outstanding at once in several times the timeout.
#[test]
#[ignore = "part of `make test-disks`"]
fn a_slow_line_is_not_taken_for_one_that_hangs() {
    let env = TestEnv::new();
    let slow = RateLimit {
        rate_bits: 8_000_000,
        burst_bytes: 128 * 1024,
        latency: Duration::from_millis(400),
    };
    let mut line = HostPair::new(Some(slow)).unwrap();
    let from = full_disk(&env, DiskFormat::Raw);
    let to = blank_disk(&env, DiskFormat::Raw);
    let mut guest = Guest::boot(&env, guest_with(&from));
    let there = guest_with(&to);
    let plan = across(&line, "hybrid")
        .migrate_args(&["--stall-timeout", "4s"])
        .destination_config(there.clone());
    let migration = guest.start_migration(&plan);
    migration.migrate.wait_stderr("pre-copy, round 1");
    // The memory takes less time.
    line.set_rate_limit(Some(RateLimit::gbit(1))).unwrap();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
    guest.set_config(there);
}
