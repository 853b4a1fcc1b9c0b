//! A guest that is paused by its operator stays paused, and is complete when it resumes.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::QemuVersion::V7_2;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, log};

#[test]
fn a_paused_guest_stays_paused() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    for mode in ["precopy", "hybrid", "postcopy"] {
        guest.vm().stop().unwrap();
        let (exits, finished) = guest.start_migration(&MigrationPlan::new(mode)).wait();
        let json_report = guest.complete_migration(&exits, finished, "paused");
        assert!(
            json_report.downtime_ms == Some(0.0),
            "the operator paused it, not hikkoshi"
        );
        guest.vm().cont().unwrap();
        guest.assert_healthy();
    }
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_paused_guest_stays_paused_after_a_failed_migration() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    guest.vm().stop().unwrap();
    let stays = ["the guest is at the source, paused as before"];
    for (mode, breakpoint) in [
        ("precopy", Breakpoint::after(MessageKind::Pages)),
        ("hybrid", Breakpoint::before(MessageKind::Discarded)),
        ("postcopy", Breakpoint::after(MessageKind::DeviceStateChunk)),
        // Its device state has been saved, and the guest can be moved again nevertheless.
        ("precopy", Breakpoint::after(MessageKind::Switch)),
        ("hybrid", Breakpoint::before(MessageKind::Switch)),
        ("postcopy", Breakpoint::before(MessageKind::Ready)),
    ] {
        let (exits, finished) = guest
            .start_migration(&MigrationPlan::new(mode).cut_at(breakpoint))
            .wait();
        exits.assert_source(1, &stays);
        assert!(
            !exits.migrate.stderr.contains("runs at the source"),
            "{exits:?}"
        );
        assert_eq!(
            guest.vm().status().unwrap(),
            "paused",
            "{mode}, {breakpoint}"
        );
        log(format!("{mode}, cut {breakpoint}: still paused"));
        finished.destination.kill();
    }
    let (exits, finished) = guest.start_migration(&MigrationPlan::new("hybrid")).wait();
    guest.complete_migration(&exits, finished, "paused");
    guest.vm().cont().unwrap();
    guest.assert_healthy();
    guest.migrate(&MigrationPlan::new("postcopy"));
}

/// The engine is killed, and QEMU itself, or the guard process, restores the state.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_paused_guest_whose_engine_is_killed_stays_paused() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    guest.vm().stop().unwrap();
    for breakpoint in [
        Breakpoint::before(MessageKind::DeviceStateChunk),
        Breakpoint::before(MessageKind::Switch),
        Breakpoint::before(MessageKind::Ready),
    ] {
        let mut migration =
            guest.start_migration(&MigrationPlan::new("hybrid").hold_at(breakpoint));
        migration.wait_held();
        migration.migrate.kill();
        migration.relay().cut();
        let (_, finished) = migration.wait_for_source_first();
        finished.before.assert_unchanged(guest.vm());
        assert_eq!(guest.vm().status().unwrap(), "paused", "{breakpoint}");
        log(format!("killed {breakpoint}: still paused"));
    }
    guest.vm().cont().unwrap();
    guest.assert_healthy();
}

/// A late failure, after the device state was saved and loaded.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_paused_guest_whose_move_fails_late_can_be_moved_again() {
    let env = TestEnv::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let config = VmConfig::new().version(V7_2).workload(workload);
    let mut guest = Guest::boot(&env, config);
    guest.vm().stop().unwrap();
    let late = MigrationPlan::new("precopy").cut_at(Breakpoint::after(MessageKind::Switch));
    let (exits, finished) = guest.start_migration(&late).wait();
    exits.assert_source(1, &["at the source, paused as before"]);
    assert_eq!(guest.vm().status().unwrap(), "paused");
    finished.destination.kill();
    let (exits, finished) = guest.start_migration(&MigrationPlan::new("hybrid")).wait();
    guest.complete_migration(&exits, finished, "paused");
    guest.vm().cont().unwrap();
    guest.assert_healthy();
}
