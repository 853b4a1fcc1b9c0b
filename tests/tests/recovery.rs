//! From commit on nothing is lost: links that break and engines that are killed are replaced, and
//! the guest has all of its pages in the end.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_tests::{
    Breakpoint, Exit, Guest, LONG, MessageKind, Migration, MigrationPlan, Program, TestEnv,
    Transport, assert_command_refused, assert_not_running, busy_guest, hikkoshi,
};
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Who goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Links,
    Source,
    Destination,
    Both,
    SourceAndQemu,
}

/// Interrupts a migration at a moment and goes on with it, with new engines.
fn interrupted(guest: &mut Guest<'_>, plan: MigrationPlan, who: Who, at: Breakpoint) {
    let what = format!("{who:?} gone {at}");
    let mut migration = guest.start_migration(&plan.hold_at(at));
    migration.wait_held();
    if matches!(who, Who::Source | Who::Both | Who::SourceAndQemu) {
        migration.migrate.kill();
    }
    if matches!(who, Who::Destination | Who::Both) {
        migration.receive.kill();
    }
    if who == Who::SourceAndQemu {
        guest.vm().kill();
        guest.vm().wait_exit(LONG).unwrap();
    }
    migration.relay().cut();
    have_left(&mut migration);
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    guest.complete_resumed_migration(&exits, finished, &what);
}

/// Both engines have ended: those that were not killed have left, and said how to go on.
fn have_left(migration: &mut Migration) -> [Exit; 2] {
    let receive = migration.receive.wait();
    if receive.code.is_some() {
        receive.assert(3, &["nothing of it is lost", "hikkoshi receive --resume="]);
    }
    let migrate = migration.migrate.wait();
    if migrate.code.is_some() {
        migrate.assert(3, &["othing of it is lost", "hikkoshi migrate --resume="]);
    }
    assert_eq!(migration.journals().len(), 2, "one a side");
    [migrate, receive]
}

/// At each of these moments, one after the other, the guest going to and fro.
fn each(
    mode: &'static str,
    transport: Transport,
    steps: impl IntoIterator<Item = (Who, Breakpoint)>,
) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for (who, at) in steps {
        let plan = MigrationPlan::new(mode).transport(transport.clone());
        interrupted(&mut guest, plan, who, at);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

#[test]
fn links_that_break_in_postcopy() {
    let steps = [
        (Who::Links, Breakpoint::before(Commit)),
        (Who::Links, Breakpoint::after(Commit)),
        (Who::Links, Breakpoint::after(Pages).nth(500)),
    ];
    each("postcopy", Transport::Unix, steps);
}

#[test]
fn links_that_break_in_hybrid() {
    let steps = [
        (Who::Links, Breakpoint::before(Commit)),
        (Who::Links, Breakpoint::after(Commit)),
        (Who::Links, Breakpoint::before(Resumed)),
    ];
    each("hybrid", Transport::Tcp, steps);
}

#[test]
fn engines_that_are_killed_in_postcopy() {
    let steps = [
        (Who::Destination, Breakpoint::after(Pages).nth(400)),
        (Who::Source, Breakpoint::after(Pages).nth(300)),
        (Who::Both, Breakpoint::after(Pages).nth(600)),
    ];
    each("postcopy", Transport::Tcp, steps);
}

#[test]
fn engines_that_are_killed_at_commit() {
    let steps = [
        (Who::Destination, Breakpoint::before(Commit)),
        (Who::Source, Breakpoint::before(Commit)),
        (Who::Both, Breakpoint::before(Commit)),
        (Who::Both, Breakpoint::after(Commit)),
    ];
    each("hybrid", Transport::Unix, steps);
}

/// Everything has arrived with the commit: only who has the guest is to be settled.
#[test]
fn precopy_at_commit() {
    let steps = [
        (Who::Links, Breakpoint::before(Commit)),
        (Who::Both, Breakpoint::before(Commit)),
    ];
    each("precopy", Transport::Unix, steps);
}

/// The source's engine and its QEMU are killed: the RAM file is enough, even if nobody there has
/// heard yet that the guest runs at the destination.
#[test]
fn a_source_of_which_only_the_memory_is_left() {
    let steps = [
        (Who::SourceAndQemu, Breakpoint::after(Commit)),
        (Who::SourceAndQemu, Breakpoint::before(Resumed)),
        (Who::SourceAndQemu, Breakpoint::after(Pages).nth(400)),
    ];
    each("postcopy", Transport::Tcp, steps);
}

/// A QEMU that would empty its RAM file when it ends in order does not as long as it can be gone on
/// from there, though no engine is there any more when it is asked to end.
#[test]
fn a_source_qemu_that_ends_after_both_engines() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let discard = json!({ "path": "/objects/ram", "property": "discard-data", "value": true });
    guest.vm().qmp().execute("qom-set", discard).unwrap();
    // Background comes when the source has heard that the guest runs there, and takes its time.
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&["--bandwidth", "16M"])
        .hold_at(Breakpoint::before(Ack));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.relay().cut();
    let [migrate, _] = have_left(&mut migration);
    let runs_there = ["the guest runs at the destination: never continue it"];
    migrate.assert(3, &runs_there);
    // Nor does one more engine, which finds nobody, have it emptied.
    migration.resume_migrate(&[]);
    migration.migrate.wait().assert(3, &runs_there);
    let held = || {
        std::fs::metadata(&guest.vm().ram_files()[0])
            .unwrap()
            .blocks()
    };
    let before = held();
    // Its answer may be lost with it.
    let _ = guest.vm().qmp().execute("quit", json!({}));
    let ended = guest.vm().wait_exit(LONG).unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(held(), before, "what the RAM file has");
    migration.resume_receive(&[]);
    migration.resume_migrate(&["--bandwidth", "1G"]);
    let (exits, finished) = migration.wait();
    let account = exits.accounts[0].as_ref().unwrap();
    assert!(account.pages.background > 0, "{account:?}");
    guest.complete_resumed_migration(&exits, finished, "source QEMU has quit after both engines");
    guest.migrate(&MigrationPlan::new("precopy"));
}

/// The links break again and again, and both engines go on by themselves.
#[test]
fn links_that_break_are_made_again() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for at in [
        Breakpoint::before(Commit),
        Breakpoint::after(Commit),
        Breakpoint::before(Resumed),
        Breakpoint::after(Pages).nth(300),
    ] {
        let plan = MigrationPlan::new("postcopy")
            .transport(Transport::Tcp)
            .reset_at(at);
        // Nobody has to ask for it.
        let plan = if at == Breakpoint::after(Commit) {
            plan.default_retry()
        } else {
            plan.migrate_args(&["--retry-for", "200"])
                .receive_args(&["--retry-for", "200"])
        };
        let migration = guest.start_migration(&plan);
        let (exits, finished) = migration.wait();
        exits.assert_source(0, &["othing is lost"]);
        exits.assert_destination(0, &["nothing is lost"]);
        guest.complete_resumed_migration(&exits, finished, &format!("interrupted {at}"));
    }
}

/// What the engines say goes on, with nothing added: address and options are in the journals.
#[test]
fn what_is_said_is_all_it_takes() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for transport in [Transport::Unix, Transport::Tcp] {
        let plan = MigrationPlan::new("postcopy")
            .transport(transport)
            .migrate_args(&["--bandwidth", "200M", "--links", "2"])
            .receive_args(&["--fault-threads", "2"])
            .reset_at(Breakpoint::after(Pages).nth(300));
        let mut migration = guest.start_migration(&plan);
        let [receive, migrate] = [migration.receive.wait(), migration.migrate.wait()];
        for ended in [&receive, &migrate] {
            ended.assert(3, &["othing of it is lost"]);
        }
        out_of_sight(&migration);
        let receive = receive.suggested_command("hikkoshi receive --resume=", env.folder());
        migration.receive = Program::start("what receive said", receive);
        migration.receive.wait_stderr("waiting for its source at ");
        let migrate = migrate.suggested_command("hikkoshi migrate --resume=", env.folder());
        migration.migrate = Program::start("what migrate said", migrate);
        let (exits, finished) = migration.wait();
        guest.complete_resumed_migration(&exits, finished, "by what was said");
    }
}

/// Where QEMU's process cannot be seen nobody takes it for gone, and the journals stay.
fn out_of_sight(migration: &Migration) {
    for side in ["receive", "migrate"] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]);
        command
            .arg(hikkoshi())
            .args([side, "--resume", "--journal"]);
        command.arg(&migration.journal_folders()[0]);
        let parts = [
            "another PID namespace",
            "the journal is as it was",
            "--resume=",
        ];
        assert_command_refused(command, 3, &parts);
    }
    assert_eq!(migration.journals().len(), 2);
}

/// Both engines are gone, and one side after the other is given up by whoever knows that the other
/// one is lost: the guest that had moved ends, and the one that was stopped runs on.
#[test]
fn what_is_given_up() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for at in [
        Breakpoint::before(Commit),
        Breakpoint::after(Pages).nth(300),
    ] {
        let mut migration = guest.start_migration(
            &MigrationPlan::new("postcopy")
                .transport(Transport::Tcp)
                .hold_at(at),
        );
        migration.wait_held();
        migration.migrate.kill();
        migration.receive.kill();
        migration.relay().cut();
        let ran = at != Breakpoint::before(Commit);
        if ran {
            migration.start_receive_resume(&["--give-up"]);
            migration
                .receive
                .wait()
                .assert(2, &["would end here", "--other-side-is-lost"]);
            migration.start_receive_resume(&["--give-up", "--other-side-is-lost"]);
            migration
                .receive
                .wait()
                .assert(4, &["the guest has ended here"]);
            migration.destination.wait_exit(LONG).unwrap();
        } else {
            migration.start_receive_resume(&["--give-up"]);
            migration.receive.wait().assert(1, &["never will"]);
            assert_not_running(&migration.destination);
        }
        migration.resume_migrate(&["--give-up"]);
        migration.migrate.wait().assert(
            2,
            &["otherwise there are two of it", "--other-side-is-lost"],
        );
        assert_not_running(guest.vm());
        migration.resume_migrate(&["--give-up", "--other-side-is-lost"]);
        migration
            .migrate
            .wait()
            .assert(1, &["the guest runs on at the source"]);
        guest.assert_healthy();
        migration.destination.kill();
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}
