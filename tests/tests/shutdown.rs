//! A guest that shuts itself down while it is moved is not lost: it has ended by its own will, and
//! both sides say so.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, LONG, MessageKind, Migration, MigrationPlan, TestEnv, Transport,
};

/// It runs at the destination, and nothing comes to it that it does not ask for.
fn hardly_there(guest: &mut Guest<'_>, hold: Option<Breakpoint>) -> Migration {
    let mut plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&["--background-delay", "3600000", "--read-ahead=off"]);
    if let Some(breakpoint) = hold {
        plan = plan.hold_at(breakpoint);
    }
    let migration = guest.start_migration(&plan);
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
    let mut migration = hardly_there(&mut guest, None);
    // The workload's end is the guest's: it powers off.
    migration.destination.send("stop").unwrap();
    migration.destination.wait_exit(LONG).unwrap();
    let migrate = migration.migrate.wait();
    migrate.assert(0, &[]);
    let ended = "the guest has shut itself down at the destination";
    assert!(migrate.stdout.contains(ended), "{migrate:?}");
    let receive = migration.receive.wait();
    receive.assert(0, &["the guest has shut itself down here"]);
    for said in [&migrate.stderr, &receive.stderr] {
        assert!(!said.contains("lost"), "{said}");
    }
    let journals = migration.journals();
    assert!(journals.is_empty(), "{journals:?}");
    assert_eq!(guest.vm().status().unwrap(), "postmigrate");
}

/// The same, but the source does not hear it: an engine that is started when QEMU has ended long
/// since tells it.
#[test]
fn a_guest_that_powers_off_while_its_source_is_gone() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, small());
    let mut migration = hardly_there(&mut guest, Some(Breakpoint::before(MessageKind::ShutDown)));
    migration.destination.send("stop").unwrap();
    migration.wait_held();
    migration.destination.wait_exit(LONG).unwrap();
    migration.migrate.kill();
    migration.relay().cut();
    let receive = migration.receive.wait();
    receive.assert(0, &["the source could not be told so"]);
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    migration.migrate.wait().assert(0, &[]);
    migration.receive.wait().assert(0, &[]);
    let journals = migration.journals();
    assert!(journals.is_empty(), "{journals:?}");
    assert_eq!(guest.vm().status().unwrap(), "postmigrate");
}
