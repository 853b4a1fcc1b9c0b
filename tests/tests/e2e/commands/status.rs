//! What is served and recorded of a migration.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test's failure is the message

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hikkoshi_account::{GuestAt, Map, Phase, Side, State};
use hikkoshi_lab::{Ram, VmConfig, Workload};
use hikkoshi_status::{
    Follow, Recording, StatusEntry, StatusEntryKind, StatusFolder, StatusRecord,
};
use hikkoshi_tests::{
    Guest, JsonSchema, Migration, MigrationPlan, Program, TestEnv, busy_guest, eventually, hikkoshi,
};

const LONG: Duration = Duration::from_secs(120);

/// Follows the socket of this side to its end: the first recording, all states, and the last end.
fn follow(folder: &Path, side: &str) -> (Recording, Vec<State>, hikkoshi_status::End) {
    let folder = StatusFolder::in_run_folder(folder);
    let mut follow = None;
    eventually("a status socket", || {
        let entries = folder.entries().map_err(|error| error.to_string())?;
        let of_side = |entry: &&StatusEntry| {
            entry.kind == StatusEntryKind::Socket && entry.name.starts_with(side)
        };
        let entry = entries.iter().find(of_side).ok_or("none")?;
        let opened = Follow::open(&entry.path, LONG);
        follow = Some(opened.map_err(|error| error.to_string())?);
        Ok(())
    });
    let mut follow = follow.unwrap();
    let Some(StatusRecord::Recording(first)) = follow.next().unwrap() else {
        panic!("the first record is the recording");
    };
    let schema = JsonSchema::of_status();
    let (mut states, mut end) = (Vec::new(), None);
    while let Some(record) = follow.next().unwrap() {
        schema.assert("line", &serde_json::to_string(&record).unwrap());
        assert!(end.is_none(), "nothing follows the end");
        match record {
            StatusRecord::State(state) => states.push(*state),
            StatusRecord::End(last) => end = Some(last),
            StatusRecord::Notice(notice) => assert!(!notice.text.is_empty()),
            StatusRecord::Recording(_) => panic!("a second recording"),
        }
    }
    (*first, states, end.expect("the engine was not killed"))
}

/// The file of the migration on this side.
fn file(folder: &Path, side: &str) -> Recording {
    let folder = StatusFolder::in_run_folder(folder);
    let entries = folder.entries().unwrap();
    let ended: Vec<_> = entries
        .iter()
        .filter(|entry| entry.name.starts_with(side))
        .collect();
    let [entry] = ended[..] else {
        panic!("one ended migration: {entries:?}");
    };
    assert_eq!(entry.kind, StatusEntryKind::File, "the socket is gone");
    Recording::read(&entry.path).unwrap()
}

/// A guest that writes is moved by hybrid over a limited line, and both engines are watched.
#[test]
fn both_sides_of_a_move_can_be_watched() {
    let env = TestEnv::new();
    let workload = Workload::verify(64).rate(3000);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    let slowly = ["--bandwidth", "40M", "--rounds", "2"];
    let plan = MigrationPlan::new("hybrid").migrate_args(&slowly);
    let migration = guest.start_migration(&plan);
    let folders = migration.journal_folders().clone();
    let [source, destination] = std::thread::scope(|scope| {
        let [here, there] = &folders;
        let source = scope.spawn(|| follow(here, "source"));
        let destination = scope.spawn(|| follow(there, "destination"));
        [source.join().unwrap(), destination.join().unwrap()]
    });
    let (exits, finished) = migration.wait();
    let report = guest.complete_migration(&exits, finished, "running");

    for ((first, states, end), folder, side) in [
        (&source, &folders[0], "source"),
        (&destination, &folders[1], "destination"),
    ] {
        assert!(first.end.is_none());
        assert_eq!((end.exit_status, end.reason.as_str()), (0, "moved"));
        let pages = first.migration.memory.pages;
        assert_eq!(pages, report.pages.guest);
        assert!(states.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        let phases: Vec<_> = states.iter().map(|state| state.phase).collect();
        assert!(phases.contains(&Phase::Precopy), "{side}: {phases:?}");
        let last = states.last().unwrap();
        assert_eq!((last.phase, last.missing_pages), (Phase::Postcopy, Some(0)));
        assert_eq!(last.guest_at, GuestAt::Destination);
        assert!(last.downtime_ms.is_some_and(|downtime| downtime > 0.0));
        assert!(!last.switchover.is_empty());
        let stored = file(folder, side);
        assert_eq!(stored.migration, first.migration);
        assert_eq!(stored.end.as_ref(), Some(end));
        assert_eq!(stored.state.as_ref(), Some(last));
        assert!(stored.samples.len() >= states.len());
        assert_eq!(
            stored.frames.last().map(|frame| &frame.map),
            Some(&last.map)
        );
    }
    let (first, states, end) = &source;
    assert_eq!(first.migration.side, Side::Source);
    assert_eq!(first.migration.id, destination.0.migration.id);
    assert_eq!(first.migration.limits.bandwidth, Some(40_000_000));
    // While it was sent, the number of sent pages grew, and the dirty rate became known.
    let sent = |state: &State| state.map.sent.iter().sum::<u64>();
    let later = states.iter().find(|state| state.rounds.len() == 2);
    assert!(sent(&states[0]) < sent(later.unwrap()));
    let rates: Vec<f64> = states
        .iter()
        .filter_map(|state| state.dirty_pages_per_second)
        .collect();
    // The guest writes, with whatever share of a processor it gets.
    assert!(
        !rates.is_empty() && rates.iter().all(|&rate| rate > 0.0),
        "{rates:?}"
    );
    let pages = first.migration.memory.pages;
    for state in states {
        let rated = state.map.rated_pages;
        let is_known = state.dirty_pages_per_second.is_some();
        assert_eq!(is_known, Map::is_rated(rated, pages), "{rated} of {pages}");
    }
    assert!(states.iter().any(|state| state.time_left.is_some()));
    let last = states.last().unwrap();
    assert_eq!(
        (last.stage.name(), last.peer_stage.name()),
        ("done", "complete")
    );
    assert_eq!(last.rounds.len(), 2, "{:?}", last.rounds);
    // The account is that of `--json`.
    let account = end.account.as_ref().unwrap();
    assert_eq!(**account, report.0);
    assert_eq!(last.pages.urgent, report.pages.urgent);

    let (_, states, _) = &destination;
    // It does not know the rounds, and nothing of the guest's writes.
    let precopy = states.iter().filter(|state| state.phase == Phase::Precopy);
    for state in precopy {
        assert_eq!((state.round, state.total_pages), (0, 0), "{state:?}");
        assert_eq!(state.dirty_pages_per_second, None);
        assert_eq!((state.map.rated_pages, state.time_left), (0, None));
    }
    let last = states.last().unwrap();
    assert_eq!(last.stage.name(), "complete");
    let arrived = |list: &[u64]| list.iter().sum::<u64>();
    assert_eq!(
        last.requests.count,
        report.requests.request_latency_us.count
    );
    assert_eq!(
        arrived(&last.map.by_request) + arrived(&last.map.background),
        arrived(&source.1.last().unwrap().map.by_request)
            + arrived(&source.1.last().unwrap().map.background)
    );
    assert!(last.map.missing.is_empty() && last.waiting_pages == 0);
}

/// A migration that is cancelled is recorded, too.
#[test]
fn a_cancelled_migration_is_recorded() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("precopy").migrate_args(&["--bandwidth", "2M"]);
    let migration = guest.start_migration(&plan);
    let folder = StatusFolder::in_run_folder(&migration.journal_folders()[0]);
    eventually("pre-copy", || {
        let entries = folder.entries().map_err(|error| error.to_string())?;
        let of_source = |entry: &&StatusEntry| {
            entry.kind == StatusEntryKind::Socket && entry.name.starts_with("source")
        };
        let entry = entries.iter().find(of_source).ok_or("none")?;
        let mut follow = Follow::open(&entry.path, LONG).map_err(|error| error.to_string())?;
        follow.next().map_err(|error| error.to_string())?;
        // Not earlier: a destination that has not accepted the guest would wait for another one.
        match follow.next() {
            Ok(Some(StatusRecord::State(state))) if state.phase == Phase::Precopy => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    migration.migrate.interrupt();
    let folders = migration.journal_folders().clone();
    let (exits, _) = migration.wait();
    exits.assert_source(1, &["the guest still runs at the source"]);
    let stored = file(&folders[0], "source");
    let end = stored.end.unwrap();
    assert_eq!((end.exit_status, end.reason.as_str()), (1, "cancelled"));
    assert!(end.next.unwrap().contains("still runs at the source"));
    assert_eq!(stored.state.unwrap().guest_at, GuestAt::Source);
    guest.assert_healthy();
    assert_history(&folders[0], &stored.migration);
}

/// The history has the migration that was cancelled, and names a recording that is damaged.
fn assert_history(folder: &Path, cancelled: &hikkoshi_status::Migration) {
    let status = StatusFolder::in_run_folder(folder);
    let entries = status.entries().unwrap();
    let content = std::fs::read(&entries[0].path).unwrap();
    let torn = status.path().join("source-1-torn.json");
    std::fs::write(&torn, &content[..content.len() / 2]).unwrap();
    let history = |more: &[&str]| {
        let mut command = Command::new(hikkoshi());
        command
            .arg("history")
            .args(more)
            .arg("--journal")
            .arg(folder);
        let exit = Program::start("history", command).wait();
        exit.assert(0, &["source-1-torn.json is skipped: "]);
        exit.stdout
    };
    let text = history(&["--json", "--since", "1d", "--guest", &cancelled.guest]);
    let entry = JsonSchema::of_status().assert("past_migration", text.trim_end());
    assert_eq!(entry["result"], "cancelled");
    assert_eq!(
        (&entry["id"], &entry["exit_status"]),
        (&(*cancelled.id).into(), &1.into())
    );
    assert_eq!(
        (&entry["from"], &entry["to"]),
        (&(*cancelled.host).into(), &(*cancelled.host).into())
    );
    // Both sides are on this host.
    assert_eq!(entry["sides"].as_array().unwrap().len(), 2, "{entry}");
    // It may have been cancelled before a page had arrived.
    assert!(entry["bytes"].is_u64());
    let table = history(&[]);
    assert!(table.contains("cancelled"), "{table}");
    assert_eq!(history(&["--json", "--guest", "no such guest"]), "");
    std::fs::remove_file(torn).unwrap();
}

/// Nanoseconds that the thread `status` of a process has run.
fn cpu_ns(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    for task in tasks.map(|task| task.unwrap().path()) {
        if std::fs::read_to_string(task.join("comm")).unwrap().trim() == "status" {
            let times = std::fs::read_to_string(task.join("schedstat")).unwrap();
            return times.split(' ').next().unwrap().parse().unwrap();
        }
    }
    panic!("process {pid} has no thread named status");
}

/// What it costs an engine to record and serve the status of a guest whose map has all of its 1,024
/// cells, as that of a guest of 1 TiB has: at the source in pre-copy, and on both sides in
/// post-copy.
#[test]
#[ignore = "a measurement, for docs/status.md: make bench-status"]
fn what_a_status_costs() {
    let env = TestEnv::new();
    let slowly = ["--bandwidth", "4M", "--max-rounds", "1000000"];
    let (guest, migration) =
        slow_migration(&env, &MigrationPlan::new("precopy").migrate_args(&slowly));
    let of_source = (migration.migrate.pid(), Side::Source);
    measure("pre-copy", &migration, of_source, &[0, 1, 4, 16]);
    migration.migrate.interrupt();
    let (exits, _) = migration.wait();
    exits.assert_source(1, &["the guest still runs at the source"]);
    guest.assert_healthy();
    // The next guest's QEMU has the same name.
    drop(guest);

    let slowly = ["--bandwidth", "2M", "--compress", "off"];
    let (mut guest, migration) =
        slow_migration(&env, &MigrationPlan::new("postcopy").migrate_args(&slowly));
    let of_source = (migration.migrate.pid(), Side::Source);
    let of_destination = (migration.receive.pid(), Side::Destination);
    for side in [of_source, of_destination] {
        measure("post-copy", &migration, side, &[0, 4]);
    }
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
}

/// A migration that takes longer than it is measured.
fn slow_migration<'a>(env: &'a TestEnv, plan: &MigrationPlan) -> (Guest<'a>, Migration) {
    let workload = Workload::verify(64).rate(3000);
    let config = VmConfig::new().ram(Ram::shared(2048)).workload(workload);
    let mut guest = Guest::boot(env, config);
    let migration = guest.start_migration(plan);
    (guest, migration)
}

/// Prints what the status of an engine costs while this many clients follow it.
#[allow(clippy::print_stdout)] // A measurement.
fn measure(what: &str, migration: &Migration, (pid, side): (u32, Side), clients: &[usize]) {
    let (name, at) = match side {
        Side::Source => ("source", 0),
        Side::Destination => ("destination", 1),
    };
    let folder = StatusFolder::in_run_folder(&migration.journal_folders()[at]);
    let mut threads = Vec::new();
    for &number in clients {
        while threads.len() < number {
            let mut opened = None;
            eventually("a status socket", || {
                let entries = folder.entries().map_err(|error| error.to_string())?;
                let of_side = |entry: &&StatusEntry| {
                    entry.kind == StatusEntryKind::Socket && entry.name.starts_with(name)
                };
                let entry = entries.iter().find(of_side).ok_or("none")?;
                opened = Follow::open(&entry.path, LONG).ok();
                opened
                    .is_some()
                    .then_some(())
                    .ok_or_else(|| "no client".into())
            });
            let mut follow = opened.unwrap();
            threads.push(std::thread::spawn(
                move || {
                    while let Ok(Some(_)) = follow.next() {}
                },
            ));
        }
        // All are connected, and a record is a page in the cache.
        std::thread::sleep(Duration::from_secs(2));
        let (cpu, begun) = (cpu_ns(pid), std::time::Instant::now());
        std::thread::sleep(Duration::from_secs(8));
        let (cpu, real) = (cpu_ns(pid) - cpu, begun.elapsed());
        let share = 100.0 * cpu as f64 / real.as_nanos() as f64;
        println!("{what}, {name}, {number} clients: the thread status took {share:.2} % of a CPU");
    }
}
