//! Links cut at every step up to commit, and at the very end. Up to commit the source's guest
//! continues to run, and can be moved later; cuts after commit are tested in `after_commit.rs`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_tests::{
    Breakpoint, Guest, InjectedFault, MessageKind, MigrationPlan, TestEnv, Transport, busy_guest,
    inject_at_each,
};

/// A destination that accepted a source which then disconnected accepts the next one.
#[test]
fn the_same_destination_accepts_the_next_source() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("hybrid").cut_at(Breakpoint::before(Offer));
    let mut migration = guest.start_migration(&plan);
    migration.migrate.wait().assert(1, &["runs at the source"]);
    migration.receive.wait_stderr("refused a guest");
    migration.retry_migrate(guest.vm());
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}

/// Cuts all links at each of these breakpoints, and migrates the guest in the end.
fn cut_at_each(
    mode: &'static str,
    transport: Transport,
    breakpoints: impl IntoIterator<Item = Breakpoint>,
) {
    let steps = breakpoints.into_iter().map(|breakpoint| (mode, breakpoint));
    inject_at_each(InjectedFault::LinksCut, transport, steps);
}

/// The links are cut before the source has offered the guest: the destination continues to wait.
fn cut_early(mode: &'static str, transport: Transport) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let early = [
        Breakpoint::before(HelloControl),
        Breakpoint::after(HelloControl),
        Breakpoint::before(Greeting),
        Breakpoint::before(Offer),
    ];
    for breakpoint in early {
        let plan = MigrationPlan::new(mode)
            .transport(transport.clone())
            .cut_at(breakpoint);
        let mut migration = guest.start_migration(&plan);
        let ended = migration.migrate.wait();
        ended.assert(1, &["runs at the source"]);
        assert!(
            !migration.receive.has_exited(),
            "the destination must continue to wait"
        );
        migration.receive.interrupt();
        let (exits, finished) = migration.wait();
        exits.assert_destination(1, &["cancelled", "the guest stays at the source"]);
        guest.assert_stayed(finished, &format!("{mode}, cut {breakpoint}"));
    }
    guest.migrate(&MigrationPlan::new(mode).transport(transport));
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn cut_before_the_guest_was_offered() {
    cut_early("hybrid", Transport::Tcp);
}

#[test]
#[ignore = "part of `make drills`"]
fn cut_at_each_step_of_precopy() {
    let breakpoints = [
        Breakpoint::after(Offer),
        Breakpoint::before(Accept),
        Breakpoint::after(Accept),
        Breakpoint::before(HelloBackground),
        Breakpoint::after(HelloBackground),
        Breakpoint::before(Pages),
        Breakpoint::after(Pages),
        Breakpoint::after(Pages).nth(40),
        Breakpoint::before(Ack),
        Breakpoint::after(Zeros),
        Breakpoint::before(DeviceStateChunk),
        Breakpoint::after(DeviceStateChunk),
        Breakpoint::before(Switch),
        Breakpoint::after(Switch),
        Breakpoint::before(Ready),
    ];
    cut_at_each("precopy", Transport::Unix, breakpoints);
}

#[test]
#[ignore = "part of `make drills`"]
fn cut_at_each_step_of_postcopy() {
    let breakpoints = [
        Breakpoint::after(Offer),
        Breakpoint::after(Accept),
        Breakpoint::after(HelloBackground),
        Breakpoint::before(HelloUrgent),
        Breakpoint::after(HelloUrgent),
        Breakpoint::before(Discard),
        Breakpoint::after(Discard),
        Breakpoint::before(DiscardEnd),
        Breakpoint::after(DiscardEnd),
        Breakpoint::before(Discarded),
        Breakpoint::after(Discarded),
        Breakpoint::before(DeviceStateChunk),
        Breakpoint::after(DeviceStateChunk),
        Breakpoint::before(Switch),
        Breakpoint::after(Switch),
        Breakpoint::before(Ready),
    ];
    cut_at_each("postcopy", Transport::Tcp, breakpoints);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn cut_at_each_step_of_hybrid() {
    let breakpoints = [
        Breakpoint::after(HelloUrgent),
        Breakpoint::after(Pages),
        Breakpoint::before(Pages).nth(60),
        Breakpoint::before(Discard),
        Breakpoint::after(Discard),
        Breakpoint::after(DiscardEnd),
        Breakpoint::before(Discarded),
        Breakpoint::after(DeviceStateChunk),
        Breakpoint::before(Switch),
        Breakpoint::after(Switch),
        Breakpoint::before(Ready),
    ];
    cut_at_each("hybrid", Transport::Unix, breakpoints);
}

/// All pages are received, and the last message is lost: no page is lost, and the guest runs.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn cut_before_the_last_message() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("hybrid").cut_at(Breakpoint::before(Goodbye));
    let (exits, finished) = guest.start_migration(&plan).wait();
    guest.complete_migration(&exits, finished, "running");
    let mut migration =
        guest.start_migration(&MigrationPlan::new("postcopy").cut_at(Breakpoint::before(Complete)));
    // The source cannot know; the destination does.
    migration
        .receive
        .wait()
        .assert(0, &["could not be notified"]);
    let ended = migration.migrate.wait();
    ended.assert(3, &["o data is lost", "hikkoshi migrate --resume="]);
    // It is notified when both resume.
    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    guest.complete_resumed_migration(&exits, finished, "cut before Complete");
}
