//! From commit on nothing is lost: links that break and engines that are killed are replaced, and
//! the guest has all of its pages in the end.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_tests::{
    Attempt, Ended, Guest, Kind, LONG, Moment, Program, Scene, Trip, Via, assert_not_running, busy,
    hikkoshi, refused_command,
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
fn interrupted(guest: &mut Guest<'_>, trip: Trip, who: Who, at: Moment) {
    let what = format!("{who:?} gone {at}");
    let mut attempt = guest.set_out(&trip.hold(at));
    attempt.wait_held();
    if matches!(who, Who::Source | Who::Both | Who::SourceAndQemu) {
        attempt.migrate.kill();
    }
    if matches!(who, Who::Destination | Who::Both) {
        attempt.receive.kill();
    }
    if who == Who::SourceAndQemu {
        guest.vm().kill();
        guest.vm().wait_exit(LONG).unwrap();
    }
    attempt.relay().cut();
    have_left(&mut attempt);
    attempt.resume_receive(&[]);
    attempt.resume_migrate(&[]);
    let (ends, arrived) = attempt.wait();
    guest.arrive_after_all(&ends, arrived, &what);
}

/// Both engines have ended: those that were not killed have left, and said how to go on.
fn have_left(attempt: &mut Attempt) -> [Ended; 2] {
    let receive = attempt.receive.wait();
    if receive.code.is_some() {
        receive.assert(3, &["nothing of it is lost", "hikkoshi receive --resume="]);
    }
    let migrate = attempt.migrate.wait();
    if migrate.code.is_some() {
        migrate.assert(3, &["othing of it is lost", "hikkoshi migrate --resume="]);
    }
    assert_eq!(attempt.journals().len(), 2, "one a side");
    [migrate, receive]
}

/// At each of these moments, one after the other, the guest going to and fro.
fn each(mode: &'static str, via: Via, steps: impl IntoIterator<Item = (Who, Moment)>) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for (who, at) in steps {
        let trip = Trip::by(mode).via(via.clone());
        interrupted(&mut guest, trip, who, at);
    }
    guest.travel(&Trip::by("hybrid"));
}

#[test]
fn links_that_break_in_postcopy() {
    let steps = [
        (Who::Links, Moment::before(Commit)),
        (Who::Links, Moment::after(Commit)),
        (Who::Links, Moment::after(Pages).nth(500)),
    ];
    each("postcopy", Via::Unix, steps);
}

#[test]
fn links_that_break_in_hybrid() {
    let steps = [
        (Who::Links, Moment::before(Commit)),
        (Who::Links, Moment::after(Commit)),
        (Who::Links, Moment::before(Resumed)),
    ];
    each("hybrid", Via::Tcp, steps);
}

#[test]
fn engines_that_are_killed_in_postcopy() {
    let steps = [
        (Who::Destination, Moment::after(Pages).nth(400)),
        (Who::Source, Moment::after(Pages).nth(300)),
        (Who::Both, Moment::after(Pages).nth(600)),
    ];
    each("postcopy", Via::Tcp, steps);
}

#[test]
fn engines_that_are_killed_at_commit() {
    let steps = [
        (Who::Destination, Moment::before(Commit)),
        (Who::Source, Moment::before(Commit)),
        (Who::Both, Moment::before(Commit)),
        (Who::Both, Moment::after(Commit)),
    ];
    each("hybrid", Via::Unix, steps);
}

/// Everything has arrived with the commit: only who has the guest is to be settled.
#[test]
fn precopy_at_commit() {
    let steps = [
        (Who::Links, Moment::before(Commit)),
        (Who::Both, Moment::before(Commit)),
    ];
    each("precopy", Via::Unix, steps);
}

/// The source's engine and its QEMU are killed: the RAM file is enough, even if nobody there has
/// heard yet that the guest runs at the destination.
#[test]
fn a_source_of_which_only_the_memory_is_left() {
    let steps = [
        (Who::SourceAndQemu, Moment::after(Commit)),
        (Who::SourceAndQemu, Moment::before(Resumed)),
        (Who::SourceAndQemu, Moment::after(Pages).nth(400)),
    ];
    each("postcopy", Via::Tcp, steps);
}

/// A QEMU that would empty its RAM file when it ends in order does not as long as it can be gone on
/// from there, though no engine is there any more when it is asked to end.
#[test]
fn a_source_qemu_that_ends_after_both_engines() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let discard = json!({ "path": "/objects/ram", "property": "discard-data", "value": true });
    guest.vm().qmp().execute("qom-set", discard).unwrap();
    // Background comes when the source has heard that the guest runs there, and takes its time.
    let trip = Trip::by("postcopy")
        .via(Via::Tcp)
        .with(&["--bandwidth", "16M"])
        .hold(Moment::before(Ack));
    let mut attempt = guest.set_out(&trip);
    attempt.wait_held();
    attempt.relay().cut();
    let [migrate, _] = have_left(&mut attempt);
    let runs_there = ["the guest runs at the destination: never continue it"];
    migrate.assert(3, &runs_there);
    // Nor does one more engine, which finds nobody, have it emptied.
    attempt.resume_migrate(&[]);
    attempt.migrate.wait().assert(3, &runs_there);
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
    attempt.resume_receive(&[]);
    attempt.resume_migrate(&["--bandwidth", "1G"]);
    let (ends, arrived) = attempt.wait();
    let account = ends.accounts[0].as_ref().unwrap();
    assert!(account.pages.background > 0, "{account:?}");
    guest.arrive_after_all(&ends, arrived, "source QEMU has quit after both engines");
    guest.travel(&Trip::by("precopy"));
}

/// The links break again and again, and both engines go on by themselves.
#[test]
fn links_that_break_are_made_again() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for at in [
        Moment::before(Commit),
        Moment::after(Commit),
        Moment::before(Resumed),
        Moment::after(Pages).nth(300),
    ] {
        let trip = Trip::by("postcopy").via(Via::Tcp).interrupt(at);
        // Nobody has to ask for it.
        let trip = if at == Moment::after(Commit) {
            trip.retry_by_default()
        } else {
            trip.with(&["--retry-for", "200"])
                .receive_with(&["--retry-for", "200"])
        };
        let attempt = guest.set_out(&trip);
        let (ends, arrived) = attempt.wait();
        ends.assert_source(0, &["othing is lost"]);
        ends.assert_destination(0, &["nothing is lost"]);
        guest.arrive_after_all(&ends, arrived, &format!("interrupted {at}"));
    }
}

/// What the engines say goes on, with nothing added: address and options are in the journals.
#[test]
fn what_is_said_is_all_it_takes() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for via in [Via::Unix, Via::Tcp] {
        let trip = Trip::by("postcopy")
            .via(via)
            .with(&["--bandwidth", "200M", "--links", "2"])
            .receive_with(&["--fault-threads", "2"])
            .interrupt(Moment::after(Pages).nth(300));
        let mut attempt = guest.set_out(&trip);
        let [receive, migrate] = [attempt.receive.wait(), attempt.migrate.wait()];
        for ended in [&receive, &migrate] {
            ended.assert(3, &["othing of it is lost"]);
        }
        out_of_sight(&attempt);
        let receive = receive.told_to_run("hikkoshi receive --resume=", scene.folder());
        attempt.receive = Program::start("what receive said", receive);
        attempt.receive.wait_said("waiting for its source at ");
        let migrate = migrate.told_to_run("hikkoshi migrate --resume=", scene.folder());
        attempt.migrate = Program::start("what migrate said", migrate);
        let (ends, arrived) = attempt.wait();
        guest.arrive_after_all(&ends, arrived, "by what was said");
    }
}

/// Where QEMU's process cannot be seen nobody takes it for gone, and the journals stay.
fn out_of_sight(attempt: &Attempt) {
    for side in ["receive", "migrate"] {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]);
        command
            .arg(hikkoshi())
            .args([side, "--resume", "--journal"]);
        command.arg(&attempt.journal_folders()[0]);
        let parts = [
            "another PID namespace",
            "the journal is as it was",
            "--resume=",
        ];
        refused_command(command, 3, &parts);
    }
    assert_eq!(attempt.journals().len(), 2);
}

/// Both engines are gone, and one side after the other is given up by whoever knows that the other
/// one is lost: the guest that had moved ends, and the one that was stopped runs on.
#[test]
fn what_is_given_up() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for at in [Moment::before(Commit), Moment::after(Pages).nth(300)] {
        let mut attempt = guest.set_out(&Trip::by("postcopy").via(Via::Tcp).hold(at));
        attempt.wait_held();
        attempt.migrate.kill();
        attempt.receive.kill();
        attempt.relay().cut();
        let ran = at != Moment::before(Commit);
        if ran {
            attempt.start_receive_again(&["--give-up"]);
            attempt
                .receive
                .wait()
                .assert(2, &["would end here", "--other-side-is-lost"]);
            attempt.start_receive_again(&["--give-up", "--other-side-is-lost"]);
            attempt
                .receive
                .wait()
                .assert(4, &["the guest has ended here"]);
            attempt.destination.wait_exit(LONG).unwrap();
        } else {
            attempt.start_receive_again(&["--give-up"]);
            attempt.receive.wait().assert(1, &["never will"]);
            assert_not_running(&attempt.destination);
        }
        attempt.resume_migrate(&["--give-up"]);
        attempt.migrate.wait().assert(
            2,
            &["otherwise there are two of it", "--other-side-is-lost"],
        );
        assert_not_running(guest.vm());
        attempt.resume_migrate(&["--give-up", "--other-side-is-lost"]);
        attempt
            .migrate
            .wait()
            .assert(1, &["the guest runs on at the source"]);
        guest.is_sound();
        attempt.destination.kill();
    }
    guest.travel(&Trip::by("hybrid"));
}
