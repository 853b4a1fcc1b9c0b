//! An engine or a QEMU is killed at every step. Up to commit the source's guest continues to run
//! and can be moved later, as long as its own QEMU runs.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::journals::children;
use MessageKind::*;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, Guest, InjectedFault, LONG, MessageKind, MigrationPlan, Program, TestEnv,
    Transport, assert_not_running, busy_guest, eventually, hikkoshi, inject_at_each, log,
};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;

/// Kills `hikkoshi migrate` at each breakpoint: its guard process resumes the guest.
fn source_engine(
    mode: &'static str,
    transport: Transport,
    breakpoints: impl IntoIterator<Item = Breakpoint>,
) {
    let steps = breakpoints.into_iter().map(|breakpoint| (mode, breakpoint));
    inject_at_each(InjectedFault::SourceKilled, transport, steps);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_engine_killed_in_precopy() {
    let breakpoints = [
        Breakpoint::after(Offer),
        Breakpoint::before(HelloBackground),
        Breakpoint::after(Pages),
        Breakpoint::after(Pages).nth(40),
        Breakpoint::before(DeviceStateChunk),
        Breakpoint::after(DeviceStateChunk),
        Breakpoint::before(Switch),
        Breakpoint::after(Switch),
        Breakpoint::before(Ready),
    ];
    source_engine("precopy", Transport::Unix, breakpoints);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_engine_killed_in_postcopy() {
    let breakpoints = [
        Breakpoint::before(Accept),
        Breakpoint::before(HelloUrgent),
        Breakpoint::after(Discard),
        Breakpoint::after(DiscardEnd),
        Breakpoint::before(Discarded),
        Breakpoint::after(DeviceStateChunk),
        Breakpoint::before(Switch),
        Breakpoint::after(Switch),
        Breakpoint::before(Ready),
    ];
    source_engine("postcopy", Transport::Tcp, breakpoints);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_engine_killed_in_hybrid() {
    let breakpoints = [
        Breakpoint::after(Pages).nth(60),
        Breakpoint::before(Discard),
        Breakpoint::before(Discarded),
        Breakpoint::before(DeviceStateChunk),
        Breakpoint::after(DeviceStateChunk),
        Breakpoint::after(Switch),
        Breakpoint::before(Ready),
    ];
    source_engine("hybrid", Transport::Unix, breakpoints);
}

/// A service manager that ends what is left of a unit signals the guard just when it is needed: the
/// guard ends by its pipe only.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_engine_killed_after_its_guard_was_signalled() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let breakpoint = Breakpoint::before(DeviceStateChunk);
    let mut migration = guest.start_migration(&MigrationPlan::new("hybrid").hold_at(breakpoint));
    migration.wait_held();
    assert_eq!(guest.vm().status().unwrap(), "paused");
    let [guard] = children(migration.migrate.pid())[..] else {
        panic!("the engine has one child");
    };
    let guard = Pid::from_raw(guard).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(guard, signal).unwrap();
    }
    migration.migrate.kill();
    migration.relay().cut();
    let (exits, finished) = migration.wait_for_source_first();
    exits.assert_destination(1, &[]);
    let restored = "the guest runs at the source";
    assert!(exits.migrate.stderr.contains(restored), "{exits:?}");
    guest.assert_stayed(finished, "source engine killed, guard signalled");
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// Kills `hikkoshi receive` at each breakpoint.
#[test]
fn destination_engine_killed() {
    let steps = [
        ("precopy", Breakpoint::before(Accept)),
        ("precopy", Breakpoint::after(Accept)),
        ("precopy", Breakpoint::after(Pages).nth(40)),
        ("precopy", Breakpoint::after(DeviceStateChunk)),
        ("precopy", Breakpoint::after(Switch)),
        ("precopy", Breakpoint::before(Ready)),
        ("hybrid", Breakpoint::after(Pages).nth(40)),
        ("hybrid", Breakpoint::after(Discard)),
        ("hybrid", Breakpoint::before(Ready)),
        ("postcopy", Breakpoint::after(DiscardEnd)),
        ("postcopy", Breakpoint::after(Switch)),
        ("postcopy", Breakpoint::before(Ready)),
    ];
    inject_at_each(InjectedFault::DestinationKilled, Transport::Tcp, steps);
}

/// Both engines are killed in pre-copy: neither side reports that the guest was handed over, and
/// the destination's QEMU, into which a part of it was written, cannot be used again.
#[test]
fn both_engines_killed_in_precopy() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let breakpoint = Breakpoint::after(Pages).nth(40);
    let mut migration = guest.start_migration(&MigrationPlan::new("hybrid").hold_at(breakpoint));
    migration.wait_held();
    migration.migrate.kill();
    migration.receive.kill();
    migration.relay().cut();
    migration.start_receive_resume(&[]);
    let resumed = migration.receive.wait();
    resumed.assert(
        1,
        &[
            "there is no journal of an unfinished migration (destination)",
            "no guest was handed over to this QEMU: a part of one was written to its memory, \
             and it has never run here. Restart this QEMU before the next try",
        ],
    );
    eventually("the guard to restore the guest", || {
        let journals = migration.journals();
        journals.is_empty().then_some(()).ok_or(journals.join(", "))
    });
    migration.resume_migrate(&[]);
    let resumed = migration.migrate.wait();
    resumed.assert(1, &["the guest runs here: there is nothing to resume"]);
    migration.destination.kill();
    guest.assert_healthy();
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// Kills the destination's QEMU at each breakpoint; the engines must detect it.
#[test]
fn destination_qemu_killed() {
    let steps = [
        ("precopy", Breakpoint::before(Offer)),
        ("precopy", Breakpoint::after(Accept)),
        ("precopy", Breakpoint::after(Pages).nth(40)),
        ("precopy", Breakpoint::before(DeviceStateChunk)),
        ("precopy", Breakpoint::before(Switch)),
        ("hybrid", Breakpoint::before(Offer)),
        ("hybrid", Breakpoint::after(Pages).nth(40)),
        ("hybrid", Breakpoint::before(Discard)),
        ("hybrid", Breakpoint::before(Switch)),
        ("postcopy", Breakpoint::before(DiscardEnd)),
        ("postcopy", Breakpoint::before(Switch)),
    ];
    inject_at_each(InjectedFault::DestinationQemuKilled, Transport::Tcp, steps);
}

/// The destination's QEMU is killed after *ready*, and the source has sent *commit*. The
/// destination reports that the guest never ran there, and the source resumes it.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn destination_qemu_killed_after_ready() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for mode in ["precopy", "postcopy"] {
        let migration =
            guest.start_migration(&MigrationPlan::new(mode).hold_at(Breakpoint::before(Commit)));
        migration.wait_held();
        migration.destination.kill();
        migration.relay().release();
        let (exits, finished) = migration.wait();
        exits.assert_source(1, &["never ran the guest", "runs at the source"]);
        exits.assert_destination(1, &["the guest stays at the source"]);
        let what = format!("{mode}, destination QEMU killed before Commit");
        guest.assert_stayed(finished, &what);
    }
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// The destination's QEMU and its engine are killed: a new engine notifies the source.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn destination_qemu_and_engine_killed_after_ready() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let mut migration =
        guest.start_migration(&MigrationPlan::new("hybrid").hold_at(Breakpoint::before(Commit)));
    migration.wait_held();
    migration.receive.kill();
    migration.destination.kill();
    migration.relay().cut();
    let ended = migration.migrate.wait();
    ended.assert(3, &["o data is lost", "hikkoshi migrate --resume="]);
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["never ran the guest", "runs at the source"]);
    exits.assert_destination(1, &["the guest stays at the source"]);
    guest.assert_stayed(finished, "destination QEMU and engine killed before Commit");
    guest.migrate(&MigrationPlan::new("hybrid"));
}

/// The destination's QEMU ends before a source has connected: its engine does not wait for a guest
/// that it cannot accept.
#[test]
fn destination_qemu_killed_before_a_source_connects() {
    let env = TestEnv::new();
    let vm = busy_guest().incoming().start(env.lab(), "lonely").unwrap();
    let mut receive = Command::new(hikkoshi());
    receive.args(["receive", "--listen", &env.unused_socket(), "--qmp"]);
    receive.arg(vm.qmp_path());
    let mut receive = Program::start("receive", receive);
    receive.wait_stderr("waiting for a guest at ");
    assert!(!receive.has_exited());
    vm.kill();
    let ended = receive.wait();
    ended.assert(1, &["this QEMU has ended", "the guest stays at the source"]);
    assert!(!ended.stderr.contains("cancelled"), "{ended:?}");
}

/// Kills the source's QEMU: the guest is gone, both engines exit, and the destination does not run
/// an incomplete guest.
fn source_qemu(mode: &'static str, breakpoint: Breakpoint) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let migration = guest.start_migration(&MigrationPlan::new(mode).hold_at(breakpoint));
    migration.wait_held();
    kill_source_qemu(&guest);
    migration.relay().release();
    let (exits, finished) = migration.wait();
    if exits.codes() == [Some(0); 2] {
        // All state outside the RAM file had been sent.
        log(format!(
            "{mode}, source QEMU killed {breakpoint}: the migration succeeded"
        ));
        guest.set_vm(finished.destination);
        guest.assert_healthy();
        return;
    }
    for code in exits.codes() {
        assert!(matches!(code, Some(1 | 3)), "{exits:?}");
    }
    assert_not_running(&finished.destination);
    assert!(
        !exits.migrate.stderr.contains("runs at the source"),
        "the guest does not run at the source: {exits:?}"
    );
    log(format!(
        "{mode}, source QEMU killed {breakpoint}: {:?}",
        exits.codes()
    ));
}

fn kill_source_qemu(guest: &Guest<'_>) {
    guest.vm().kill();
    guest.vm().wait_exit(LONG).unwrap();
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_killed_in_precopy() {
    source_qemu("precopy", Breakpoint::after(Pages).nth(40));
}

#[test]
fn source_qemu_killed_in_the_switchover() {
    source_qemu("hybrid", Breakpoint::before(DeviceStateChunk));
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_killed_before_the_switchover() {
    source_qemu("hybrid", Breakpoint::before(Discarded));
}

/// The guest runs at the destination, and its memory is still in the source's RAM file: the
/// source's QEMU is not needed any more.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_killed_in_postcopy() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let migration = guest
        .start_migration(&MigrationPlan::new("postcopy").hold_at(Breakpoint::after(GuestResumed)));
    migration.wait_held();
    kill_source_qemu(&guest);
    migration.relay().release();
    let (exits, finished) = migration.wait();
    exits.assert_source(0, &[]);
    exits.assert_destination(0, &[]);
    eventually("the guest to run at the destination", || {
        let status = finished.destination.status().unwrap();
        (status == "running").then_some(()).ok_or(status)
    });
    guest.set_vm(finished.destination);
    guest.assert_healthy();
    guest.migrate(&MigrationPlan::new("precopy"));
}

/// The source's QEMU is ended with `quit`: it frees its devices and its memory, and the RAM file
/// stays. From then on the guest requests every page that it works with, and checks it; the other
/// pages follow in the end. The source's engine stays, or is killed and replaced.
fn the_source_qemu_quits_in_postcopy(with_engine: bool) {
    let env = TestEnv::new();
    // The guest accesses its pages so slowly that most of them are missing when its source has
    // gone.
    let workload = Workload::verify(64).rate(100).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&["--background-delay", "3600000", "--read-ahead=off"])
        .migrate_args(&["--retry-for", "1h"])
        .receive_args(&["--retry-for", "1h"]);
    let mut migration = guest.start_migration(&plan);
    migration.receive.wait_stderr("the guest runs here now");
    // QEMU may end before it answers.
    let _ = guest.vm().qmp().execute("quit", serde_json::json!({}));
    let ended = guest.vm().wait_exit(LONG).unwrap();
    assert!(ended.success(), "{ended}");
    if with_engine {
        migration.migrate.kill();
        let on = ["--background-delay", "3600000"];
        migration.resume_migrate(&on);
        migration
            .migrate
            .wait_stderr("reconnected to the destination");
    }
    let verdict = migration.destination.sweep(LONG).unwrap();
    assert!(verdict.ok && verdict.pages == 64 * 256, "{verdict:?}");
    assert!(!migration.migrate.has_exited() && !migration.receive.has_exited());
    migration.migrate.kill();
    migration.resume_migrate(&["--background-delay", "0"]);
    let (exits, finished) = migration.wait();
    let [Some(here), Some(there)] = &exits.json_reports else {
        panic!("a JSON report is missing: {exits:?}");
    };
    assert!(here.pages.background > 0, "{here:?}");
    assert!(there.requests.request_latency_us.count > 0, "{there:?}");
    guest.complete_resumed_migration(&exits, finished, "source QEMU has quit");
    guest.migrate(&MigrationPlan::new("precopy"));
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_quits_in_postcopy() {
    the_source_qemu_quits_in_postcopy(false);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn source_qemu_quits_and_its_engine_is_killed_in_postcopy() {
    the_source_qemu_quits_in_postcopy(true);
}
