//! Resources that run out during a migration: space on the file system of the destination's RAM
//! file or of a journal; and a destination QEMU that is killed with the guest in it.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_account::Side;
use hikkoshi_lab::Mount;
use hikkoshi_tests::{
    Breakpoint, Guest, JsonSchema, LONG, MessageKind, Migration, MigrationPlan, TestEnv, Transport,
    assert_not_running, busy_guest, left_in, log,
};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Makes post-copy long enough to inject a fault in the middle.
const SLOW_BACKGROUND: [&str; 2] = ["--bandwidth", "20M"];
const LONG_RETRY: [&str; 2] = ["--retry-for", "1h"];

/// A file that takes all free space of a file system, until it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn in_folder(folder: &Path) -> Self {
        let path = folder.join("filler");
        let file = File::create(&path).unwrap();
        let (mut has, mut more) = (0, u64::MAX);
        loop {
            let system = statvfs(folder).unwrap();
            let free = system.f_bavail * system.f_frsize;
            if free == 0 {
                return Self(path);
            }
            // fallocate is all or nothing, and another process may take a page meanwhile.
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
#[ignore = "one of its kind runs in CI: make drills"]
fn no_memory_left_in_precopy() {
    let env = TestEnv::new();
    let small = Mount::tmpfs(env.lab(), "small", 320).unwrap();
    let mut guest = Guest::boot(&env, busy_guest());
    let there = busy_guest().ram_directory(small.path());
    for (mode, at) in [
        ("precopy", Breakpoint::after(Pages).nth(40)),
        // The destination has none of the guest's pages, so every page lacks space.
        ("hybrid", Breakpoint::before(Pages)),
    ] {
        let migration = guest.start_migration(
            &MigrationPlan::new(mode)
                .destination_config(there.clone())
                .hold_at(at),
        );
        migration.wait_held();
        let filler = Filler::in_folder(small.path());
        migration.relay().release();
        let (exits, finished) = migration.wait();
        let full = "file system, or the huge-page pool, full?";
        exits.assert_source(1, &[full, "runs at the source"]);
        exits.assert_destination(1, &[full, "the guest stays at the source"]);
        guest.assert_stayed(finished, &format!("{mode}, no memory left {at}"));
        drop(filler);
    }
    guest.migrate(&MigrationPlan::new("hybrid").destination_config(there));
}

const NO_ROOM: &str = "the host has no memory left for the guest's pages";
const ROOM: &str = "there is memory for the guest's pages again";

/// In post-copy the destination waits for free memory, and reports it. Links may be cut and engines
/// may be killed meanwhile.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn no_memory_left_in_postcopy() {
    let env = TestEnv::new();
    let small = Mount::tmpfs(env.lab(), "small", 320).unwrap();
    let mut guest = Guest::boot(&env, busy_guest());
    let there = busy_guest().ram_directory(small.path());
    let stall = ["--stall-timeout", "1s"];
    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .destination_config(there)
        .migrate_args(&SLOW_BACKGROUND)
        .migrate_args(&LONG_RETRY)
        .migrate_args(&stall)
        .receive_args(&LONG_RETRY)
        .receive_args(&stall)
        .hold_at(Breakpoint::after(Pages).nth(200));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    let mut filler = Filler::in_folder(small.path());
    migration.relay().release();
    migration.receive.wait_stderr(NO_ROOM);
    // A destination that waits for memory does not stall the link, however long it takes.
    std::thread::sleep(Duration::from_secs(4));
    let said = migration.migrate.stderr() + &migration.receive.stderr();
    assert!(!said.contains("nothing is lost. "), "{said}");
    // Pause the source, so that no new page arrives before the space is used up again.
    migration.migrate.signal(Signal::STOP);
    let before = migration.receive.stderr_count(NO_ROOM);
    drop(filler);
    migration.receive.wait_stderr(ROOM);

    // Links are cut while there is no space.
    filler = Filler::in_folder(small.path());
    migration.migrate.signal(Signal::CONT);
    migration.receive.wait_stderr_count(NO_ROOM, before + 1);
    migration.relay().reset_links();
    migration
        .migrate
        .wait_stderr("reconnected to the destination");
    migration.receive.wait_stderr_count(NO_ROOM, 2);

    // The destination's engine is killed, and so is its successor.
    for _ in 0..2 {
        migration.receive.kill();
        migration.resume_receive(&LONG_RETRY);
        migration.receive.wait_stderr(NO_ROOM);
    }
    // The source's engine is killed, too.
    migration.migrate.kill();
    migration.resume_migrate(&LONG_RETRY);
    migration
        .migrate
        .wait_stderr("reconnected to the destination");
    assert!(!migration.receive.has_exited());
    drop(filler);
    migration.receive.wait_stderr(ROOM);
    let (exits, finished) = migration.wait();
    guest.complete_resumed_migration(&exits, finished, "no memory left for a while");
}

/// Two small file systems for the journals.
struct JournalMounts([Mount; 2]);

impl JournalMounts {
    fn new(env: &TestEnv) -> Self {
        Self(["desk0", "desk1"].map(|name| Mount::tmpfs(env.lab(), name, 1).unwrap()))
    }

    fn plan(&self, mode: &'static str) -> MigrationPlan {
        let [source, destination] = &self.0;
        MigrationPlan::new(mode).journals_at(
            &source.path().join("journal"),
            &destination.path().join("journal"),
        )
    }

    fn fill(&self, side: Side) -> Filler {
        Filler::in_folder(self.0[side as usize].path())
    }
}

const RECORDING: &str = "recording the migration's progress";

/// What the guard process needs: without it the guest is not paused.
const WRITING: &str = "writing the undo record";

/// Up to *commit* the source keeps its guest.
#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn no_room_for_a_journal_before_commit() {
    let env = TestEnv::new();
    let mounts = JournalMounts::new(&env);
    let mut guest = Guest::boot(&env, busy_guest());
    for (side, at, doing) in [
        (Side::Source, Breakpoint::before(HelloControl), WRITING),
        (Side::Source, Breakpoint::before(Ready), RECORDING),
        (Side::Destination, Breakpoint::after(Accept), RECORDING),
        (Side::Destination, Breakpoint::before(Switch), RECORDING),
    ] {
        let migration = guest.start_migration(&mounts.plan("hybrid").hold_at(at));
        migration.wait_held();
        let filler = mounts.fill(side);
        migration.relay().release();
        let folders = migration.journal_folders().clone();
        let (exits, finished) = migration.wait();
        exits.assert_source(1, &[doing, "runs at the source"]);
        let reported = match side {
            Side::Source => "the source reports where it is",
            Side::Destination => "the guest stays at the source",
        };
        exits.assert_destination(1, &[doing, reported]);
        drop(filler);
        assert_nothing_in(&folders);
        guest.assert_stayed(
            finished,
            &format!("no room for the {side:?}'s journal {at}"),
        );
    }
    guest.migrate(&mounts.plan("hybrid"));
}

/// After *commit*, no step is taken that was not recorded; with free space the migration is
/// resumed.
#[test]
#[ignore = "others of its kind run in CI: make drills"]
fn no_room_for_a_journal_after_commit() {
    let env = TestEnv::new();
    let mounts = JournalMounts::new(&env);
    let mut guest = Guest::boot(&env, busy_guest());
    for (side, at) in [
        // Cannot record that the guest runs, and does not run it.
        (Side::Destination, Breakpoint::before(Commit)),
        // Cannot record that the destination runs the guest.
        (Side::Source, Breakpoint::before(GuestResumed)),
        // Cannot record that all pages are received.
        (Side::Destination, Breakpoint::after(Pages).nth(300)),
        (Side::Source, Breakpoint::before(Complete)),
    ] {
        let mut migration = guest.start_migration(&mounts.plan("postcopy").hold_at(at));
        migration.wait_held();
        let filler = mounts.fill(side);
        migration.relay().release();
        let [migrate, receive] = [migration.migrate.wait(), migration.receive.wait()];
        migrate.assert(3, &["o data is lost", "hikkoshi migrate --resume="]);
        match at.kind {
            Complete => receive.assert(0, &["could not be notified"]),
            _ => receive.assert(3, &["o data is lost", "hikkoshi receive --resume="]),
        }
        let whose = [&migrate, &receive][side as usize];
        assert!(whose.stderr.contains(RECORDING), "{whose:?}");
        if at == Breakpoint::before(Commit) {
            assert_not_running(&migration.destination);
        }
        drop(filler);
        migration.resume_receive(&[]);
        migration.resume_migrate(&[]);
        let folders = migration.journal_folders().clone();
        let (exits, finished) = migration.wait();
        let what = format!("no room for the {side:?}'s journal {at}");
        guest.complete_resumed_migration(&exits, finished, &what);
        assert_nothing_in(&folders);
    }
}

fn assert_nothing_in(folders: &[PathBuf]) {
    for folder in folders {
        let left = left_in(folder);
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The guest is lost with its QEMU, and both sides report that.
fn destination_qemu_killed(with_engine: bool) {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    // In pre-copy no data is lost.
    let plan = MigrationPlan::new("precopy").hold_at(Breakpoint::after(Pages).nth(50));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    migration.destination.kill();
    migration.relay().release();
    let (exits, finished) = migration.wait();
    exits.assert_source(1, &["runs at the source"]);
    exits.assert_destination(1, &[]);
    guest.assert_stayed(finished, "destination QEMU killed in pre-copy");

    let plan = MigrationPlan::new("postcopy")
        .transport(Transport::Tcp)
        .migrate_args(&SLOW_BACKGROUND);
    let plan = plan.migrate_args(&["--progress", "json"]);
    let mut migration = guest.start_migration(&plan.hold_at(Breakpoint::after(GuestResumed)));
    migration.wait_held();
    if with_engine {
        migration.receive.kill();
    }
    migration.destination.kill();
    migration.destination.wait_exit(LONG).unwrap();
    migration.relay().release();
    assert_reported_lost(&mut migration, with_engine);
    assert_not_running(guest.vm());
}

fn assert_reported_lost(migration: &mut Migration, with_engine: bool) {
    let lost = "the guest is lost: ";
    let migrate;
    if with_engine {
        migration.relay().cut();
        migrate = migration.migrate.wait();
        // The source cannot know that the guest is lost.
        migrate.assert(
            3,
            &[
                "as long as the destination's QEMU runs",
                "hikkoshi migrate --resume=",
            ],
        );
        migration.start_receive_resume(&[]);
    } else {
        migrate = migration.migrate.wait();
        migrate.assert(4, &["the guest has ended at the destination", lost]);
        let end = JsonSchema::published().end_of(&migrate.stderr);
        assert_eq!(end["exit_status"], 4, "{end}");
        assert_eq!(end["reason"], "guest_lost", "{end}");
        assert_eq!(end["guest"], "nobody", "{end}");
        assert!(end["resume"].is_null(), "{end}");
        assert!(!migrate.stderr.contains("o data is lost"), "{migrate:?}");
    }
    let receive = migration.receive.wait();
    receive.assert(4, &["has ended", lost]);
    log(receive.stderr.lines().last().unwrap_or_default());
}

#[test]
fn the_destination_qemu_killed_in_postcopy() {
    destination_qemu_killed(false);
}

#[test]
#[ignore = "one of its kind runs in CI: make drills"]
fn all_of_the_destination_killed_in_postcopy() {
    destination_qemu_killed(true);
}
