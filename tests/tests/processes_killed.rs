//! Somebody is killed at every step: an engine, or a QEMU. Up to commit the source's guest runs on
//! and can be moved later, as long as its own QEMU is there.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Guest, Harm, Kind, LONG, Moment, Program, Scene, Trip, Via, assert_not_running, busy,
    eventually, harmed_at_each, hikkoshi, tell,
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

/// The destination's QEMU is gone after *ready*, and the source has handed over in good faith: it
/// hears that the guest never ran there, and takes it back.
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
        ends.assert_source(1, &["never ran the guest", "runs on at the source"]);
        ends.assert_destination(1, &["the guest stays at the source"]);
        let what = format!("{mode}, destination QEMU killed before Commit");
        guest.stay(arrived, &what);
    }
    guest.travel(&Trip::by("hybrid"));
}

/// The same with its engine killed, too: a new one tells the source.
#[test]
fn all_of_the_destination_after_ready() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let mut attempt = guest.set_out(&Trip::by("hybrid").hold(Moment::before(Commit)));
    attempt.wait_held();
    attempt.receive.kill();
    attempt.destination.kill();
    attempt.relay().cut();
    let ended = attempt.migrate.wait();
    ended.assert(3, &["othing of it is lost", "hikkoshi migrate --resume="]);
    attempt.resume_receive(&[]);
    attempt.resume_migrate(&[]);
    let (ends, arrived) = attempt.wait();
    ends.assert_source(1, &["never ran the guest", "runs on at the source"]);
    ends.assert_destination(1, &["the guest stays at the source"]);
    guest.stay(arrived, "all of the destination killed before Commit");
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

/// The same when it is asked to end, and does it in order: it lets go of its devices and its memory,
/// and the RAM file stays as it was. From then on the guest asks for every page that it works with,
/// and checks it; what it did not ask for comes in the end. The source's engine stays, or is killed
/// and another one goes on.
fn the_source_qemu_quits_in_postcopy(with_engine: bool) {
    let scene = Scene::new();
    // It gets round to its pages so slowly that most of them are missing when its source has gone.
    let workload = Workload::verify(64).rate(100).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    let trip = Trip::by("postcopy")
        .via(Via::Tcp)
        .with(&["--background-delay", "3600000", "--read-ahead=off"])
        .with(&["--retry-for", "1h"])
        .receive_with(&["--retry-for", "1h"]);
    let mut attempt = guest.set_out(&trip);
    attempt.receive.wait_said("the guest runs here now");
    // Its answer may be lost with it.
    let _ = guest.vm().qmp().execute("quit", serde_json::json!({}));
    let ended = guest.vm().wait_exit(LONG).unwrap();
    assert!(ended.success(), "{ended}");
    if with_engine {
        attempt.migrate.kill();
        let on = ["--background-delay", "3600000"];
        attempt.resume_migrate(&on);
        attempt.migrate.wait_said("the destination is there again");
    }
    let verdict = attempt.destination.sweep(LONG).unwrap();
    assert!(verdict.ok && verdict.pages == 64 * 256, "{verdict:?}");
    assert!(!attempt.migrate.has_ended() && !attempt.receive.has_ended());
    attempt.migrate.kill();
    attempt.resume_migrate(&["--background-delay", "0"]);
    let (ends, arrived) = attempt.wait();
    let [Some(here), Some(there)] = &ends.accounts else {
        panic!("an account is missing: {ends:?}");
    };
    assert!(here.pages.background > 0, "{here:?}");
    assert!(there.request_latency_us.count > 0, "{there:?}");
    guest.arrive_after_all(&ends, arrived, "source QEMU has quit");
    guest.travel(&Trip::by("precopy"));
}

#[test]
fn the_source_qemu_asked_to_quit_in_postcopy() {
    the_source_qemu_quits_in_postcopy(false);
}

#[test]
fn the_source_qemu_asked_to_quit_in_postcopy_and_its_engine_killed() {
    the_source_qemu_quits_in_postcopy(true);
}
