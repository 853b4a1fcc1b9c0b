//! The destination has all pages, and its engine is killed before, while or after it releases the
//! guest.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use MessageKind::*;
use hikkoshi_lab::{GuestReport, VmConfig, Workload};
use hikkoshi_tests::{
    Breakpoint, FaultDrill, Guest, LONG, MessageKind, MigrationPlan, QemuState, TestEnv, Transport,
    busy_guest,
};
use std::time::Duration;

/// The guest continues to touch memory for the first time: holes of the RAM file, which are never
/// sent. They read as zeros as soon as the engine has been resumed, whether its source returns or
/// not.
#[test]
#[ignore = "part of `make drills`"]
fn killed_when_all_pages_are_received() {
    let env = TestEnv::new();
    let workload = Workload::verify(32).rate(10_000).option("every_ms", 200);
    // Growth of a MiB a second is visible soon, and the limit is far away on any machine.
    let config = VmConfig::new().workload(workload.grow(1, 120));
    let mut guest = Guest::boot(&env, config);
    let plan = MigrationPlan::new("postcopy").transport(Transport::Tcp);
    let mut migration = guest.start_migration(&plan.hold_at(Breakpoint::before(Complete)));
    migration.wait_held();
    migration.receive.kill();
    migration.relay().cut();
    migration.migrate.wait().assert(3, &["o data is lost"]);
    migration.resume_receive(&[]);
    let there = &migration.destination;
    let mut before = None;
    there
        .wait_report("more memory", there.console().len(), LONG, |report| {
            let GuestReport::Verify(verify) = report else {
                return None;
            };
            let more = verify.pages > *before.get_or_insert(verify.pages);
            more.then_some(())
        })
        .unwrap();
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    guest.complete_resumed_migration(
        &exits,
        finished,
        "destination killed when all pages were received",
    );
}

/// The engine is killed within milliseconds of the last message, while it releases QEMU's memory.
#[test]
#[ignore = "part of `make drills`"]
fn killed_while_releasing_memory() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    let mut drill = FaultDrill::new("destination engine killed after Goodbye");
    for round in 0..8 {
        let plan = MigrationPlan::new(["postcopy", "hybrid"][round % 2]).transport(Transport::Tcp);
        let mut migration = guest.start_migration(&plan.hold_at(Breakpoint::after(Goodbye)));
        migration.wait_held();
        std::thread::sleep(drill.random().part_of(Duration::from_millis(12)));
        migration.receive.kill();
        migration.relay().release();
        migration.migrate.wait().assert(0, &[]);
        let name = format!("destination-{}-", migration.destination.pid());
        if migration
            .journals()
            .iter()
            .any(|file| file.starts_with(&name))
        {
            migration.resume_receive(&[]);
            // Its source does not return.
            migration.receive.interrupt();
            migration
                .receive
                .wait()
                .assert(0, &["could not be notified"]);
        }
        let (_, finished) = migration.wait();
        QemuState::assert_no_userfaultfd(&finished.destination);
        guest.set_vm(finished.destination);
        guest.assert_healthy();
    }
}

/// The destination has all pages and could not report it, and its engine has exited. Its journal is
/// on the same machine, so the source completes without it. The same holds for a source that was
/// killed when it only had to release its QEMU.
#[test]
#[ignore = "part of `make drills`"]
fn a_source_completes_from_the_destinations_journal() {
    let env = TestEnv::new();
    let mut guest = Guest::boot(&env, busy_guest());
    for done in [false, true] {
        let plan = MigrationPlan::new("hybrid").hold_at(Breakpoint::before(Complete));
        let mut migration = guest.start_migration(&plan);
        migration.wait_held();
        migration.migrate.kill();
        migration.relay().cut();
        migration
            .receive
            .wait()
            .assert(0, &["could not be notified"]);
        let traces = QemuState::of_vm(guest.vm());
        assert!(!traces.has_no_userfaultfd(), "{traces:?}");
        assert_eq!(migration.journals().len(), 2);
        if done {
            for journal in journals(&env) {
                if journal.to_str().unwrap().contains("/destination-") {
                    std::fs::remove_file(journal).unwrap();
                    continue;
                }
                let text = std::fs::read_to_string(&journal).unwrap();
                let stage =
                    ["committed", "handed_over"].map(|stage| format!("\"stage\": \"{stage}\""));
                let text = stage.iter().fold(text, |text, stage| {
                    text.replace(stage.as_str(), "\"stage\": \"done\"")
                });
                std::fs::write(&journal, text).unwrap();
            }
        }
        migration.resume_migrate(&[]);
        let ended = migration.migrate.wait();
        ended.assert(0, &[]);
        assert!(
            ended.stdout.contains("needs nothing more from here"),
            "{ended:?}"
        );
        assert!(journals(&env).is_empty());
        let (_, finished) = migration.wait();
        guest.move_to_destination(finished, "completed by the source");
    }
}

/// The journals in the journal folder.
fn journals(env: &TestEnv) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(env.folder().join("journal")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect()
}
