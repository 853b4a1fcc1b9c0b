//! A guest that shuts itself down during its migration is not lost: both sides report the shutdown.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, Migration, MigrationPlan, TestEnv, Transport, eventually,
};

/// Starts a post-copy in which the guest receives only the pages that it requests.
fn start_without_background(guest: &mut Guest<'_>, hold: Option<Breakpoint>) -> Migration {
    let mut plan = without_background();
    if let Some(breakpoint) = hold {
        plan = plan.hold_at(breakpoint);
    }
    start(guest, &plan)
}

fn without_background() -> MigrationPlan {
    MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&["--background-delay", "3600000", "--read-ahead=off"])
}

fn start(guest: &mut Guest<'_>, plan: &MigrationPlan) -> Migration {
    let migration = guest.start_migration(plan);
    migration.receive.wait_stderr("the guest runs here now");
    migration
}

fn small() -> VmConfig {
    VmConfig::new().workload(Workload::verify(16).rate(100).option("every_ms", 200))
}

#[test]
fn a_guest_that_powers_off_in_postcopy() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, small());
    let mut migration = start_without_background(&mut guest, None);
    // The end of the workload powers the guest off.
    migration.destination.send("stop").unwrap();
    migration.destination.wait_exit(LONG).unwrap();
    let migrate = migration.migrate.wait();
    migrate.assert(0, &[]);
    let ended = "the guest has shut down at the destination";
    assert!(migrate.stdout.contains(ended), "{migrate:?}");
    let receive = migration.receive.wait();
    receive.assert(0, &["the guest has shut itself down here"]);
    for said in [&migrate.stderr, &receive.stderr] {
        for never in ["lost", "runs here, ", "but: "] {
            assert!(!said.contains(never), "{never:?} is in {said}");
        }
    }
    let journals = migration.journals();
    assert!(journals.is_empty(), "{journals:?}");
    assert_eq!(guest.vm().status().unwrap(), "paused");
}

/// With `-no-shutdown` QEMU stays when its guest powers off. In pre-copy such a guest is not moved,
/// and is not reported to run.
#[test]
fn a_guest_that_powers_off_in_precopy_and_leaves_its_qemu() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, small().arguments(["-no-shutdown"]));
    let plan = MigrationPlan::new("precopy").hold_at(Breakpoint::after(MessageKind::Pages).nth(10));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    guest.vm().send("stop").unwrap();
    eventually("the guest to power off", || {
        let status = guest.vm().status().unwrap();
        (status == "shutdown").then_some(()).ok_or(status)
    });
    migration.relay().release();
    let (exits, _) = migration.wait();
    let cause = "pausing the guest for the switchover: the guest's state is shutdown, and only \
                 running or paused guests can be moved: it has shut down, and its QEMU was started \
                 with -no-shutdown: start it again (QMP command 'system_reset', then 'cont') or \
                 quit QEMU";
    exits.assert_source(1, &[cause, "the guest is at the source, and has shut down"]);
    for never in ["try again", "runs at the source"] {
        assert!(!exits.migrate.stderr.contains(never), "{exits:?}");
    }
    assert_eq!(guest.vm().status().unwrap(), "shutdown");
}

/// A guest powers off in post-copy and leaves its QEMU: every page arrives, and it is not reported
/// to run.
#[test]
#[ignore = "one that ends its QEMU runs in CI: make drills"]
fn a_guest_that_powers_off_in_postcopy_and_leaves_its_qemu() {
    powers_off_and_leaves_its_qemu(|_| {});
}

/// A guest powers off in post-copy, and the engine that resumes was not there when QEMU reported
/// it.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_guest_that_powers_off_in_postcopy_and_leaves_its_qemu_before_its_receiver_is_killed() {
    powers_off_and_leaves_its_qemu(|migration| {
        migration.receive.kill();
        migration.resume_receive(&[]);
    });
}

fn powers_off_and_leaves_its_qemu(then: impl FnOnce(&mut Migration)) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, small().arguments(["-no-shutdown"]));
    let plan = without_background()
        .migrate_args(&["--retry-for", "1h"])
        .receive_args(&["--retry-for", "1h"]);
    let mut migration = start(&mut guest, &plan);
    migration.destination.send("stop").unwrap();
    eventually("the guest to power off", || {
        let status = migration.destination.status().unwrap();
        (status == "shutdown").then_some(()).ok_or(status)
    });
    then(&mut migration);
    // The pages that it did not need.
    migration.migrate.kill();
    migration.resume_migrate(&["--background-delay", "0"]);
    let migrate = migration.migrate.wait();
    migrate.assert(0, &[]);
    let ended = "the guest has shut down at the destination";
    assert!(migrate.stdout.contains(ended), "{migrate:?}");
    let receive = migration.receive.wait();
    receive.assert(0, &["the guest has shut itself down here"]);
    let ended = "the guest has run here and has shut down";
    assert!(receive.stdout.contains(ended), "{receive:?}");
    assert_eq!(migration.destination.status().unwrap(), "shutdown");
}

/// The guest powers off in post-copy, and the source is not notified: an engine that is started
/// after QEMU has ended notifies it.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn a_guest_that_powers_off_while_its_source_is_disconnected() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, small());
    let mut migration =
        start_without_background(&mut guest, Some(Breakpoint::before(MessageKind::ShutDown)));
    migration.destination.send("stop").unwrap();
    migration.wait_held();
    migration.destination.wait_exit(LONG).unwrap();
    migration.migrate.kill();
    migration.relay().cut();
    let receive = migration.receive.wait();
    receive.assert(0, &["the source could not be notified"]);
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    migration.migrate.wait().assert(0, &[]);
    migration.receive.wait().assert(0, &[]);
    let journals = migration.journals();
    assert!(journals.is_empty(), "{journals:?}");
    assert_eq!(guest.vm().status().unwrap(), "paused");
}
