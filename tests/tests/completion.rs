//! The destination has everything, and its engine is killed before, while or after it lets go of the
//! guest.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use Kind::*;
use hikkoshi_lab::{Report, VmConfig, Workload};
use hikkoshi_tests::{Drill, Guest, Kind, LONG, Moment, Scene, Traces, Trip, Via, busy};
use std::time::Duration;

/// The guest goes on touching memory that it has never touched before: holes of the RAM file, which
/// nobody sends. They are zeros as soon as the engine is there again, whether its source comes or
/// not.
#[test]
fn killed_when_all_is_there() {
    let scene = Scene::new();
    let workload = Workload::verify(32).rate(10_000).option("every_ms", 200);
    // A MiB a second is seen soon enough, and the end is far however long it takes until then.
    let config = VmConfig::new().workload(workload.grow(1, 120));
    let mut guest = Guest::boot(&scene, config);
    let trip = Trip::by("postcopy").via(Via::Tcp);
    let mut attempt = guest.set_out(&trip.hold(Moment::before(Complete)));
    attempt.wait_held();
    attempt.receive.kill();
    attempt.relay().cut();
    attempt.migrate.wait().assert(3, &["othing of it is lost"]);
    attempt.resume_receive(&[]);
    let there = &attempt.destination;
    let mut before = None;
    there
        .wait_report("more memory", there.console().len(), LONG, |report| {
            let Report::Verify(verify) = report else {
                return None;
            };
            let more = verify.pages > *before.get_or_insert(verify.pages);
            more.then_some(())
        })
        .unwrap();
    attempt.resume_migrate(&[]);
    let (ends, arrived) = attempt.wait();
    guest.arrive_after_all(&ends, arrived, "destination killed when all was there");
}

/// It is killed within milliseconds of the last word, while it makes QEMU let go of the memory.
#[test]
fn killed_while_letting_go() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    let mut drill = Drill::new("destination engine killed at the last word");
    for round in 0..8 {
        let trip = Trip::by(["postcopy", "hybrid"][round % 2]).via(Via::Tcp);
        let mut attempt = guest.set_out(&trip.hold(Moment::after(Goodbye)));
        attempt.wait_held();
        std::thread::sleep(drill.random().part_of(Duration::from_millis(12)));
        attempt.receive.kill();
        attempt.relay().let_go();
        attempt.migrate.wait().assert(0, &[]);
        let name = format!("destination-{}-", attempt.destination.pid());
        if attempt
            .journals()
            .iter()
            .any(|file| file.starts_with(&name))
        {
            attempt.resume_receive(&[]);
            // Its source does not come any more.
            attempt.receive.interrupt();
            attempt.receive.wait().assert(0, &["could not be told so"]);
        }
        let (_, arrived) = attempt.wait();
        let traces = Traces::of(&arrived.destination);
        assert!(traces.are_free_of_userfaults(), "{traces:?}");
        guest.is_now_in(arrived.destination);
        guest.is_sound();
    }
}

/// The destination has everything and could not say so, and nobody waits there any more. Its journal
/// is on the same machine, and the source settles by itself. So does one that was killed when all that
/// was left was to let go of its QEMU.
#[test]
fn a_source_that_is_not_told() {
    let scene = Scene::new();
    let mut guest = Guest::boot(&scene, busy());
    for done in [false, true] {
        let trip = Trip::by("hybrid").hold(Moment::before(Complete));
        let mut attempt = guest.set_out(&trip);
        attempt.wait_held();
        attempt.migrate.kill();
        attempt.relay().cut();
        attempt.receive.wait().assert(0, &["could not be told so"]);
        let traces = Traces::of(guest.vm());
        assert!(!traces.are_free_of_userfaults(), "{traces:?}");
        assert_eq!(attempt.journals().len(), 2);
        if done {
            for journal in journals(&scene) {
                if journal.to_str().unwrap().contains("/destination-") {
                    std::fs::remove_file(journal).unwrap();
                    continue;
                }
                let text = std::fs::read_to_string(&journal).unwrap();
                let stage = ["committed", "gone"].map(|stage| format!("\"stage\": \"{stage}\""));
                let text = stage.iter().fold(text, |text, stage| {
                    text.replace(stage.as_str(), "\"stage\": \"done\"")
                });
                std::fs::write(&journal, text).unwrap();
            }
        }
        attempt.resume_migrate(&[]);
        let ended = attempt.migrate.wait();
        ended.assert(0, &[]);
        assert!(ended.printed.contains("all of its pages"), "{ended:?}");
        assert!(journals(&scene).is_empty());
        let (_, arrived) = attempt.wait();
        guest.is_there(arrived, "settled by the source");
    }
}

/// What is in the folder of the journals.
fn journals(scene: &Scene) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(scene.folder().join("journal")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect()
}
