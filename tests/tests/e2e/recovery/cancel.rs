//! Ctrl-C on either side: before commit the guest continues at the source as if nothing had
//! happened; after commit neither side stops.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_account::Side;
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, TestEnv, Transport, busy_guest,
};

/// When a migration is cancelled: its mode, and the message at which it is held meanwhile.
type Attempt = (&'static str, Breakpoint);

/// The last point of each mode at which both sides can still cancel.
fn last_points() -> Vec<Attempt> {
    vec![
        ("precopy", Breakpoint::before(Ready)),
        ("hybrid", Breakpoint::before(Switch)),
        ("postcopy", Breakpoint::before(Ready)),
    ]
}

fn all_points() -> Vec<Attempt> {
    vec![
        ("precopy", Breakpoint::after(Pages).nth(20)),
        ("precopy", Breakpoint::before(DeviceStateChunk)),
        ("precopy", Breakpoint::before(Ready)),
        ("hybrid", Breakpoint::after(Pages).nth(20)),
        ("hybrid", Breakpoint::before(Discarded)),
        ("hybrid", Breakpoint::before(Switch)),
        ("postcopy", Breakpoint::before(Discarded)),
        ("postcopy", Breakpoint::before(Ready)),
    ]
}

fn cancelled_on(side: Side, transport: Transport, attempts: Vec<Attempt>) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for (mode, breakpoint) in attempts {
        let mut migration = guest.start_migration(
            &MigrationPlan::new(mode)
                .transport(transport.clone())
                .hold_at(breakpoint),
        );
        migration.wait_held();
        match side {
            Side::Source => migration.migrate.interrupt(),
            Side::Destination => migration.receive.interrupt(),
        }
        if side == Side::Destination && breakpoint.kind == Ready {
            // The destination has sent *ready*: only the source can cancel now, and is asked to.
            while migration.relay().seen(Cancel) == 0 && migration.relay().seen(Commit) == 0 {
                // The held message precedes the request to cancel; the first one to arrive decides.
                migration.relay().release();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            let (exits, finished) = migration.wait();
            match exits.codes() {
                [Some(0), Some(0)] => {
                    guest.complete_migration(&exits, finished, "running");
                }
                _ => {
                    exits.assert_source(1, &["cancelled", "runs at the source"]);
                    guest.assert_stayed(finished, "cancelled between ready and commit");
                }
            }
            continue;
        }
        // This engine exits by itself, and the other one is notified.
        match side {
            Side::Source => migration.migrate.wait(),
            Side::Destination => migration.receive.wait(),
        };
        migration.relay().release();
        let (exits, finished) = migration.wait();
        exits.assert_source(1, &["cancelled", "runs at the source"]);
        match side {
            Side::Source => exits.assert_destination(1, &["the source reports where it is"]),
            Side::Destination => exits.assert_destination(1, &["cancelled", "stays at the source"]),
        }
        guest.assert_stayed(finished, &format!("{mode}, cancelled {breakpoint}"));
    }
    guest.migrate(&MigrationPlan::new("hybrid").transport(transport));
}

#[test]
fn cancelled_at_the_source_at_the_last_moment() {
    cancelled_on(Side::Source, Transport::Tcp, last_points());
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn cancelled_at_the_source() {
    cancelled_on(Side::Source, Transport::Tcp, all_points());
}

#[test]
#[ignore = "part of `make drills`"]
fn cancelled_at_the_destination() {
    cancelled_on(Side::Destination, Transport::Unix, all_points());
}

/// Without a relay: in the middle of a long pre-copy, by every signal that requests termination.
#[test]
#[ignore = "others of its kind run in CI: make drills"]
fn cancelled_by_any_signal_during_precopy() {
    use rustix::process::Signal;
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        // This migration does not finish: one round alone takes minutes.
        let endless = ["--bandwidth", "1M", "--max-downtime", "1"];
        let plan = MigrationPlan::new("precopy")
            .migrate_args(&endless)
            .migrate_args(&["--progress", "json"]);
        let migration = guest.start_migration(&plan);
        migration.migrate.wait_stderr("\"phase\":\"precopy\"");
        migration.migrate.signal(signal);
        let (exits, finished) = migration.wait();
        exits.assert_source(1, &["cancelled", "runs at the source"]);
        exits.assert_destination(
            1,
            &["cancelled at the source", "the source reports where it is"],
        );
        guest.assert_stayed(finished, &format!("precopy, {signal:?}"));
    }
    guest.migrate(&MigrationPlan::new("precopy"));
}

/// The guest runs at the destination and needs its pages: both engines stay until it has them.
#[test]
fn not_cancelled_after_commit() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    // The source has sent *commit*, and does not know yet whether the guest runs.
    let migration = guest
        .start_migration(&MigrationPlan::new("precopy").hold_at(Breakpoint::before(GuestResumed)));
    migration.wait_held();
    migration.migrate.interrupt();
    let word = migration.migrate.wait_stderr("too late to cancel");
    assert!(word.contains("was asked to run the guest"), "{word}");
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");

    let migration = guest.start_migration(
        &MigrationPlan::new("postcopy").hold_at(Breakpoint::after(Pages).nth(400)),
    );
    migration.wait_held();
    migration.migrate.interrupt();
    migration.receive.interrupt();
    let needs = "the guest already runs at the destination and needs";
    migration.migrate.wait_stderr(needs);
    migration.receive.wait_stderr("not stopping before");
    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}

/// No source has connected, and the destination is interrupted.
#[test]
fn cancelled_at_a_waiting_destination() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let mut migration = guest
        .start_migration(&MigrationPlan::new("precopy").hold_at(Breakpoint::before(HelloControl)));
    migration.wait_held();
    migration.receive.interrupt();
    let ended = migration.receive.wait();
    ended.assert(1, &["cancelled", "stays at the source"]);
    migration.relay().cut();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["runs at the source"]);
    guest.assert_stayed(finished, "the destination was interrupted");
}
