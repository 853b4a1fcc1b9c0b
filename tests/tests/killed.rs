//! Somebody is killed at every step: an engine, or a QEMU. Up to commit the source's guest runs on
//! and can be moved later, as long as its own QEMU is there.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_tests::{
    Guest, Harm, Kind, LONG, Moment, Program, Scene, Trip, Via, assert_not_running, busy,
    eventually, goes_on_as_advised, harmed_at_each, hikkoshi, tell,
};
use std::process::Command;

/// Kills `hikkoshi migrate` at each moment: its guard brings the guest back.
fn source_engine(mode: &'static str, via: Via, moments: impl IntoIterator<Item = Moment>) {
    let steps = moments.into_iter().map(|moment| (mode, moment));
    harmed_at_each(Harm::SourceKilled, via, steps);
}

#[test]
fn the_source_engine_in_precopy() {
    let moments = [
        Moment::after(Begin),
        Moment::before(HelloBackground),
        Moment::after(Pages),
        Moment::after(Pages).nth(40),
        Moment::before(DeviceStateChunk),
        Moment::after(DeviceStateChunk),
        Moment::before(Switch),
        Moment::after(Switch),
        Moment::before(Ready),
    ];
    source_engine("precopy", Via::Unix, moments);
}

#[test]
fn the_source_engine_in_postcopy() {
    let moments = [
        Moment::before(Accept),
        Moment::before(HelloUrgent),
        Moment::after(Discard),
        Moment::after(DiscardEnd),
        Moment::before(Discarded),
        Moment::after(DeviceStateChunk),
        Moment::before(Switch),
        Moment::after(Switch),
        Moment::before(Ready),
    ];
    source_engine("postcopy", Via::Tcp, moments);
}

#[test]
fn the_source_engine_in_hybrid() {
    let moments = [
        Moment::after(Pages).nth(60),
        Moment::before(Discard),
        Moment::before(Discarded),
        Moment::before(DeviceStateChunk),
        Moment::after(DeviceStateChunk),
        Moment::after(Switch),
        Moment::before(Ready),
    ];
    source_engine("hybrid", Via::Unix, moments);
}

/// Its commit is on the way and it is killed: nobody may run the guest, not even its guard.
#[test]
fn the_source_engine_at_commit() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let trip = Trip::by("hybrid").hold(Moment::before(Commit));
    let mut attempt = guest.set_out(&trip);
    attempt.wait_held();
    attempt.migrate.kill();
    attempt.relay().cut();
    let (ends, arrived) = attempt.wait();
    ends.assert_destination(3, &["has never run here", "nothing of it is lost"]);
    goes_on_as_advised(&guest, &arrived, "hybrid, source engine killed at commit");
    guest.travel(&Trip::by("hybrid"));
}

/// Kills `hikkoshi receive` at each moment.
#[test]
fn the_destination_engine() {
    let steps = [
        ("precopy", Moment::before(Accept)),
        ("precopy", Moment::after(Accept)),
        ("precopy", Moment::after(Pages).nth(40)),
        ("precopy", Moment::after(DeviceStateChunk)),
        ("precopy", Moment::after(Switch)),
        ("precopy", Moment::before(Ready)),
        ("hybrid", Moment::after(Pages).nth(40)),
        ("hybrid", Moment::after(Discard)),
        ("hybrid", Moment::before(Ready)),
        ("postcopy", Moment::after(DiscardEnd)),
        ("postcopy", Moment::after(Switch)),
        ("postcopy", Moment::before(Ready)),
    ];
    harmed_at_each(Harm::DestinationKilled, Via::Tcp, steps);
}

/// Kills the destination's QEMU at each moment, and lets the engines find out.
#[test]
fn the_destination_qemu() {
    let steps = [
        ("precopy", Moment::before(Begin)),
        ("precopy", Moment::after(Accept)),
        ("precopy", Moment::after(Pages).nth(40)),
        ("precopy", Moment::before(DeviceStateChunk)),
        ("precopy", Moment::before(Switch)),
        ("hybrid", Moment::before(Begin)),
        ("hybrid", Moment::after(Pages).nth(40)),
        ("hybrid", Moment::before(Discard)),
        ("hybrid", Moment::before(Switch)),
        ("postcopy", Moment::before(DiscardEnd)),
        ("postcopy", Moment::before(Switch)),
    ];
    harmed_at_each(Harm::DestinationQemuKilled, Via::Tcp, steps);
}

/// With the destination's QEMU gone after *ready*, the source has handed over in good faith: its
/// guest is paused, whole, and its owner can let it go on.
#[test]
fn the_destination_qemu_after_ready() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for mode in ["precopy", "postcopy"] {
        let attempt = guest.set_out(&Trip::by(mode).hold(Moment::before(Commit)));
        attempt.wait_held();
        attempt.destination.kill();
        attempt.relay().let_go();
        let (ends, arrived) = attempt.wait();
        ends.assert_source(3, &["nothing of it is lost", "'cont'"]);
        ends.assert_destination(3, &[]);
        let what = format!("{mode}, destination QEMU killed before Commit");
        goes_on_as_advised(&guest, &arrived, &what);
    }
    guest.travel(&Trip::by("hybrid"));
}

/// The destination's QEMU goes while nobody has come yet: its engine does not wait on for a guest
/// that nobody could take in.
#[test]
fn the_destination_qemu_while_nobody_comes() {
    let scene = Scene::new();
    let vm = busy().incoming().start(scene.lab(), "lonely").unwrap();
    let mut receive = Command::new(hikkoshi());
    receive.args(["receive", "--listen", &scene.nowhere(), "--qmp"]);
    receive.arg(vm.qmp_path());
    let mut receive = Program::start("receive", receive);
    receive.wait_said("waiting for a guest at ");
    assert!(!receive.has_ended());
    vm.kill();
    let ended = receive.wait();
    ended.assert(1, &["this QEMU has ended", "the guest stays at the source"]);
    assert!(!ended.said.contains("cancelled"), "{ended:?}");
}

/// Kills the source's QEMU: the guest has gone, both engines end and nobody runs half of it.
fn source_qemu(mode: &'static str, moment: Moment) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let attempt = guest.set_out(&Trip::by(mode).hold(moment));
    attempt.wait_held();
    attempt_kill(&guest);
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    if ends.codes() == [Some(0); 2] {
        // It had saved everything that is not in its RAM file.
        tell(format!(
            "{mode}, source QEMU killed {moment}: has moved all the same"
        ));
        guest.is_now_in(arrived.destination);
        guest.is_sound();
        return;
    }
    for code in ends.codes() {
        assert!(matches!(code, Some(1 | 3)), "{ends:?}");
    }
    assert_not_running(&arrived.destination);
    assert!(
        !ends.migrate.said.contains("runs on at the source"),
        "it does not: {ends:?}"
    );
    tell(format!(
        "{mode}, source QEMU killed {moment}: {:?}",
        ends.codes()
    ));
}

fn attempt_kill(guest: &Guest<'_>) {
    guest.vm().kill();
    guest.vm().wait_exit(LONG).unwrap();
}

#[test]
fn the_source_qemu_in_precopy() {
    source_qemu("precopy", Moment::after(Pages).nth(40));
}

#[test]
fn the_source_qemu_in_the_switchover() {
    source_qemu("hybrid", Moment::before(DeviceStateChunk));
}

#[test]
fn the_source_qemu_before_the_switchover() {
    source_qemu("hybrid", Moment::before(Discarded));
}

/// The guest runs at the destination, and its memory is in the source's RAM file still: the
/// source's QEMU is not needed any more.
#[test]
fn the_source_qemu_in_postcopy() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let attempt = guest.set_out(&Trip::by("postcopy").hold(Moment::after(Resumed)));
    attempt.wait_held();
    attempt_kill(&guest);
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    ends.assert_source(0, &[]);
    ends.assert_destination(0, &[]);
    eventually("it runs there", || {
        let status = arrived.destination.status().unwrap();
        (status == "running").then_some(()).ok_or(status)
    });
    guest.is_now_in(arrived.destination);
    guest.is_sound();
    guest.travel(&Trip::by("precopy"));
}
