//! Somebody is killed at every step: an engine, or a QEMU. Up to commit the source's guest runs on
//! and can be moved later, as long as its own QEMU is there.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Guest, Kind, LONG, Moment, Scene, Trip, Via, assert_not_running, eventually, tell,
};

fn busy() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(10_000).option("every_ms", 200))
}

/// Kills `hikkoshi migrate` at each moment: its guard brings the guest back.
fn source_engine(mode: &'static str, via: Via, moments: impl IntoIterator<Item = Moment>) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for moment in moments {
        let mut attempt = guest.set_out(&Trip::by(mode).via(via.clone()).hold(moment));
        attempt.wait_held();
        attempt.migrate.kill();
        attempt.relay().cut();
        let (ends, arrived) = attempt.wait_for_source_first();
        assert_eq!(ends.migrate.code, None, "killed");
        match moment.kind {
            Ready => ends.assert_destination(3, &["nothing of it is lost"]),
            _ => ends.assert_destination(1, &["the guest stays at the source"]),
        }
        guest.stay(arrived, &format!("{mode}, source engine killed {moment}"));
    }
    guest.travel(&Trip::by(mode).via(via));
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
    assert_ne!(guest.vm().status().unwrap(), "running");
    assert_not_running(&arrived.destination);
    tell("hybrid, source engine killed at commit: nobody runs it, and the destination says so");
    arrived.destination.kill();
    guest.vm().cont().unwrap();
    guest.is_sound();
    guest.travel(&Trip::by("hybrid"));
}

/// Kills `hikkoshi receive` at each moment.
#[test]
fn the_destination_engine() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let attempts = [
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
    for (mode, moment) in attempts {
        let mut attempt = guest.set_out(&Trip::by(mode).via(Via::Tcp).hold(moment));
        attempt.wait_held();
        attempt.receive.kill();
        attempt.relay().cut();
        let (ends, arrived) = attempt.wait();
        ends.assert_source(1, &["the guest runs on at the source"]);
        guest.stay(
            arrived,
            &format!("{mode}, destination engine killed {moment}"),
        );
    }
    guest.travel(&Trip::by("hybrid"));
}

/// Kills the destination's QEMU at each moment, and lets the engines find out.
#[test]
fn the_destination_qemu() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let attempts = [
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
    for (mode, moment) in attempts {
        let attempt = guest.set_out(&Trip::by(mode).via(Via::Tcp).hold(moment));
        attempt.wait_held();
        attempt.destination.kill();
        attempt.relay().let_go();
        if moment.kind == Begin {
            // It refuses this guest and waits for another one.
            attempt.receive.wait_said("refused a guest");
            attempt.receive.interrupt();
        }
        let (ends, arrived) = attempt.wait();
        ends.assert_source(1, &["the guest runs on at the source"]);
        ends.assert_destination(1, &[]);
        guest.stay(
            arrived,
            &format!("{mode}, destination QEMU killed {moment}"),
        );
    }
    guest.travel(&Trip::by("hybrid"));
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
        let (ends, _arrived) = attempt.wait();
        ends.assert_source(3, &["nothing of it is lost", "'cont'"]);
        ends.assert_destination(3, &[]);
        tell(format!(
            "{mode}, destination QEMU killed before Commit: paused at the source"
        ));
        guest.vm().cont().unwrap();
        guest.is_sound();
    }
    guest.travel(&Trip::by("hybrid"));
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
