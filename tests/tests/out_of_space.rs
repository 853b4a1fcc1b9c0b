//! What a migration needs runs out under way: the file system of the destination's RAM file, or of
//! a journal; and the destination's QEMU, with the guest in it.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_lab::Mount;
use hikkoshi_tests::{
    Attempt, Guest, Kind, LONG, Moment, Scene, Schema, Trip, Via, assert_not_running, busy, tell,
};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Post-copy long enough to be met half-way.
const SLOWLY: [&str; 2] = ["--bandwidth", "20M"];
const PATIENT: [&str; 2] = ["--retry-for", "1h"];

/// A file that takes all the room that there is, as long as it lives.
struct Filler(PathBuf);

impl Filler {
    fn of(folder: &Path) -> Self {
        let path = folder.join("filler");
        let file = File::create(&path).unwrap();
        let (mut has, mut more) = (0, u64::MAX);
        loop {
            let system = statvfs(folder).unwrap();
            let free = system.f_bavail * system.f_frsize;
            if free == 0 {
                return Self(path);
            }
            // All or nothing, and somebody may take a page meanwhile.
            more = more.min(free);
            match fallocate(&file, FallocateFlags::empty(), has, more) {
                Ok(()) => has += more,
                Err(_) => more = (more / 2).max(system.f_frsize),
            }
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

/// In pre-copy, the source keeps its guest.
#[test]
fn no_memory_left_in_precopy() {
    let scene = Scene::new();
    let small = Mount::tmpfs(scene.lab(), "small", 320).unwrap();
    let mut guest = Guest::boot(&scene, busy());
    let there = busy().ram_directory(small.path());
    for (mode, at) in [
        ("precopy", Moment::after(Pages).nth(40)),
        // Nothing of the guest is there: all of its pages find no room.
        ("hybrid", Moment::before(Pages)),
    ] {
        let attempt = guest.set_out(&Trip::by(mode).to_like(there.clone()).hold(at));
        attempt.wait_held();
        let filler = Filler::of(small.path());
        attempt.relay().let_go();
        let (ends, arrived) = attempt.wait();
        let full = "file system (or the huge-page pool) full?";
        ends.assert_source(1, &[full, "the guest runs on at the source"]);
        ends.assert_destination(1, &[full, "the guest stays at the source"]);
        guest.stay(arrived, &format!("{mode}, no memory left {at}"));
        drop(filler);
    }
    guest.travel(&Trip::by("hybrid").to_like(there));
}

const NO_ROOM: &str = "the host has no memory left for the guest's pages";
const ROOM: &str = "there is memory for the guest's pages again";

/// In post-copy the destination waits for room, and says so; links may break and engines may be
/// killed meanwhile.
#[test]
fn no_memory_left_in_postcopy() {
    let scene = Scene::new();
    let small = Mount::tmpfs(scene.lab(), "small", 320).unwrap();
    let mut guest = Guest::boot(&scene, busy());
    let there = busy().ram_directory(small.path());
    let stall = ["--stall-timeout", "1s"];
    let trip = Trip::by("postcopy")
        .via(Via::Tcp)
        .to_like(there)
        .with(&SLOWLY)
        .with(&PATIENT)
        .with(&stall)
        .receive_with(&PATIENT)
        .receive_with(&stall)
        .hold(Moment::after(Pages).nth(200));
    let mut attempt = guest.set_out(&trip);
    attempt.wait_held();
    let mut filler = Filler::of(small.path());
    attempt.relay().let_go();
    attempt.receive.wait_said(NO_ROOM);
    // A destination that waits is no link that stalls, however long it takes.
    std::thread::sleep(Duration::from_secs(4));
    let said = attempt.migrate.said() + &attempt.receive.said();
    assert!(!said.contains("nothing is lost. "), "{said}");
    // Nothing new comes before there is no room again, however long that takes.
    attempt.migrate.signal(Signal::STOP);
    let told = attempt.receive.times_said(NO_ROOM);
    drop(filler);
    attempt.receive.wait_said(ROOM);

    // Links break while there is none.
    filler = Filler::of(small.path());
    attempt.migrate.signal(Signal::CONT);
    attempt.receive.wait_times_said(NO_ROOM, told + 1);
    attempt.relay().interrupt();
    attempt.migrate.wait_said("the destination is there again");
    attempt.receive.wait_times_said(NO_ROOM, 2);

    // The destination's engine is killed, and so is the next one.
    for _ in 0..2 {
        attempt.receive.kill();
        attempt.resume_receive(&PATIENT);
        attempt.receive.wait_said(NO_ROOM);
    }
    // The source's is, too.
    attempt.migrate.kill();
    attempt.resume_migrate(&PATIENT);
    attempt.migrate.wait_said("the destination is there again");
    assert!(!attempt.receive.has_ended());
    drop(filler);
    attempt.receive.wait_said(ROOM);
    let (ends, arrived) = attempt.wait();
    guest.arrive_after_all(&ends, arrived, "no memory left for a while");
}

/// Which side's journal cannot be written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Source,
    Destination,
}

/// Hosts with little room for journals.
struct Desks([Mount; 2]);

impl Desks {
    fn new(scene: &Scene) -> Self {
        Self(["desk0", "desk1"].map(|name| Mount::tmpfs(scene.lab(), name, 1).unwrap()))
    }

    fn trip(&self, mode: &'static str) -> Trip {
        let [source, destination] = &self.0;
        Trip::by(mode).journals_at(
            &source.path().join("journal"),
            &destination.path().join("journal"),
        )
    }

    fn fill(&self, side: Side) -> Filler {
        Filler::of(self.0[side as usize].path())
    }
}

const RECORDING: &str = "recording how far the migration is";

/// What the guard would need: the guest is not stopped without it.
const WRITING: &str = "writing down how to let it run again";

/// Up to *commit* the source keeps its guest.
#[test]
fn no_room_for_a_journal_before_commit() {
    let scene = Scene::new();
    let desks = Desks::new(&scene);
    let mut guest = Guest::boot(&scene, busy());
    for (side, at, doing) in [
        (Side::Source, Moment::before(HelloControl), WRITING),
        (Side::Source, Moment::before(Ready), RECORDING),
        (Side::Destination, Moment::after(Accept), RECORDING),
        (Side::Destination, Moment::before(Switch), RECORDING),
    ] {
        let attempt = guest.set_out(&desks.trip("hybrid").hold(at));
        attempt.wait_held();
        let filler = desks.fill(side);
        attempt.relay().let_go();
        let folders = attempt.journal_folders().clone();
        let (ends, arrived) = attempt.wait();
        ends.assert_source(1, &[doing, "the guest runs on at the source"]);
        ends.assert_destination(1, &[doing, "the guest stays at the source"]);
        drop(filler);
        assert_nothing_in(&folders);
        guest.stay(arrived, &format!("no room for the {side:?}'s journal {at}"));
    }
    guest.travel(&desks.trip("hybrid"));
}

/// Later, nothing is done that was not recorded, and with room it is gone on.
#[test]
fn no_room_for_a_journal_after_commit() {
    let scene = Scene::new();
    let desks = Desks::new(&scene);
    let mut guest = Guest::boot(&scene, busy());
    for (side, at) in [
        // Cannot record that it runs, and does not run it.
        (Side::Destination, Moment::before(Commit)),
        // Cannot record that it was heard to run.
        (Side::Source, Moment::before(Resumed)),
        // Cannot record that all is there.
        (Side::Destination, Moment::after(Pages).nth(300)),
        (Side::Source, Moment::before(Complete)),
    ] {
        let mut attempt = guest.set_out(&desks.trip("postcopy").hold(at));
        attempt.wait_held();
        let filler = desks.fill(side);
        attempt.relay().let_go();
        let [migrate, receive] = [attempt.migrate.wait(), attempt.receive.wait()];
        migrate.assert(3, &["othing of it is lost", "hikkoshi migrate --resume="]);
        match at.kind {
            Complete => receive.assert(0, &["could not be told so"]),
            _ => receive.assert(3, &["nothing of it is lost", "hikkoshi receive --resume="]),
        }
        let whose = [&migrate, &receive][side as usize];
        assert!(whose.said.contains(RECORDING), "{whose:?}");
        if at == Moment::before(Commit) {
            assert_not_running(&attempt.destination);
        }
        drop(filler);
        attempt.resume_receive(&[]);
        attempt.resume_migrate(&[]);
        let folders = attempt.journal_folders().clone();
        let (ends, arrived) = attempt.wait();
        let what = format!("no room for the {side:?}'s journal {at}");
        guest.arrive_after_all(&ends, arrived, &what);
        assert_nothing_in(&folders);
    }
}

fn assert_nothing_in(folders: &[PathBuf]) {
    for folder in folders {
        let left: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The guest is lost with it, and that is said as it is.
fn destination_qemu_killed(with_engine: bool) {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    // Before post-copy it costs nothing.
    let trip = Trip::by("precopy").hold(Moment::after(Pages).nth(50));
    let attempt = guest.set_out(&trip);
    attempt.wait_held();
    attempt.destination.kill();
    attempt.relay().let_go();
    let (ends, arrived) = attempt.wait();
    ends.assert_source(1, &["the guest runs on at the source"]);
    ends.assert_destination(1, &[]);
    guest.stay(arrived, "destination QEMU killed in pre-copy");

    let trip = Trip::by("postcopy").via(Via::Tcp).with(&SLOWLY);
    let trip = trip.with(&["--progress", "json"]);
    let mut attempt = guest.set_out(&trip.hold(Moment::after(Resumed)));
    attempt.wait_held();
    if with_engine {
        attempt.receive.kill();
    }
    attempt.destination.kill();
    attempt.destination.wait_exit(LONG).unwrap();
    attempt.relay().let_go();
    said_plainly(&mut attempt, with_engine);
    assert_not_running(guest.vm());
}

fn said_plainly(attempt: &mut Attempt, with_engine: bool) {
    let lost = "the guest is lost: ";
    let migrate;
    if with_engine {
        attempt.relay().cut();
        migrate = attempt.migrate.wait();
        // It cannot know.
        migrate.assert(
            3,
            &["as long as its QEMU lives", "hikkoshi migrate --resume="],
        );
        attempt.start_receive_again(&[]);
    } else {
        migrate = attempt.migrate.wait();
        migrate.assert(4, &["the guest has ended at the destination", lost]);
        let end = Schema::published().end_of(&migrate.said);
        assert_eq!(end["exit_status"], 4, "{end}");
        assert_eq!(end["reason"], "guest_lost", "{end}");
        assert_eq!(end["guest"], "nobody", "{end}");
        assert!(end["resume"].is_null(), "{end}");
        assert!(
            !migrate.said.contains("nothing of it is lost"),
            "{migrate:?}"
        );
    }
    let receive = attempt.receive.wait();
    receive.assert(4, &["has ended", lost]);
    tell(receive.said.lines().last().unwrap_or_default());
}

#[test]
fn the_destination_qemu_killed_in_postcopy() {
    destination_qemu_killed(false);
}

#[test]
fn all_of_the_destination_killed_in_postcopy() {
    destination_qemu_killed(true);
}
