//! Engines are killed in post-copy: what is known of them stays, and is a part of what is shown of
//! the engines that resume the migration.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::{Phase, Side};
use hikkoshi_status::{Recording, StatusEntryKind, StatusFolder};
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, ShownPage, TestEnv, Transport, busy_guest,
    count, eventually,
};
use serde_json::Value;
use std::path::Path;

use super::{Dashboard, run_folder};

/// The recording of a side, when it is in post-copy: from the file of an engine that runs.
fn stored(folder: &Path, side: &str) -> Recording {
    let folder = StatusFolder::in_run_folder(folder);
    let mut stored = None;
    eventually("a file of post-copy", || {
        let entries = folder.entries().map_err(|error| error.to_string())?;
        let of_side = |kind| {
            move |it: &&hikkoshi_status::StatusEntry| it.kind == kind && it.name.starts_with(side)
        };
        let file = entries
            .iter()
            .find(of_side(StatusEntryKind::File))
            .ok_or("no file")?;
        let recording = Recording::read(&file.path).map_err(|error| error.to_string())?;
        let phase = recording.state.as_ref().map(|state| state.phase);
        stored = Some(recording);
        match phase == Some(Phase::Postcopy) {
            true => Ok(()),
            false => Err(format!("{phase:?}")),
        }
    });
    stored.unwrap()
}

/// The migrations that the dashboard lists, by side.
fn listed(dashboard: &Dashboard, id: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(&dashboard.get("/api/migrations")).unwrap();
    let entries = list.as_array().unwrap().iter();
    entries
        .filter(|entry| entry["migration"]["id"] == id)
        .cloned()
        .collect()
}

fn lost_metric(id: &str, side: &str, value: u8) -> String {
    format!("hikkoshi_migration_engine_lost{{id=\"{id}\",side=\"{side}\"}} {value}\n")
}

/// Both engines are killed in post-copy, and the dashboard is started again; another guest is moved
/// meanwhile, whose engines remove the sockets. Then the migration is resumed.
#[test]
#[ignore = "moves two guests: make drills"]
fn killed_engines_stay_known_and_are_a_part_of_the_resumed_migration() {
    let env = TestEnv::new();
    let folder = run_folder(&env);
    let dashboard = Dashboard::start(&folder);
    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("hybrid")
        .transport(Transport::Tcp)
        .journals_at(&folder, &folder)
        .hold_at(Breakpoint::after(MessageKind::GuestResumed));
    let mut migration = guest.start_migration(&plan);
    migration.wait_held();
    let before = ["source", "destination"].map(|side| stored(&folder, side));
    let id = before[0].migration.id.clone();
    migration.migrate.kill();
    migration.receive.kill();
    migration.relay().cut();
    migration.wait_for_interrupted_engines();
    dashboard.end();

    let other_env = env.another();
    let mut other = Guest::boot(&other_env, busy_guest());
    other.migrate(&MigrationPlan::new("precopy").journals_at(&folder, &folder));
    let sockets = StatusFolder::in_run_folder(&folder).entries().unwrap();
    assert!(
        sockets
            .iter()
            .all(|entry| entry.kind == StatusEntryKind::File),
        "{sockets:?}"
    );

    let dashboard = Dashboard::start(&folder);
    let shown = ShownPage::start();
    shown.open(&format!("http://{}/#{id}", dashboard.address));
    let phase = |text: &str| format!("document.querySelector('.phase').textContent === '{text}'");
    shown.wait("the loss", &phase("? Engine not reached"));
    assert_eq!(shown.fact("Guest"), "runs at the destination");
    let paused = shown.fact("Paused for");
    assert_ne!(paused, "none");
    let lost = listed(&dashboard, &id);
    assert_eq!(lost.len(), 2);
    for entry in &lost {
        let text = entry["lost"].as_str().unwrap();
        assert!(
            text.contains("killed") && text.contains("--resume"),
            "{text}"
        );
    }
    let metrics = dashboard.get("/metrics");
    for side in ["source", "destination"] {
        assert!(metrics.contains(&lost_metric(&id, side, 1)), "{metrics}");
    }
    shown.screenshot("move-killed");

    migration.resume_receive(&[]);
    migration.resume_migrate(&[]);
    let (exits, finished) = migration.wait();
    let reports = exits.json_reports.clone().map(Option::unwrap);
    guest.complete_resumed_migration(&exits, finished, "killed while a dashboard watched");
    shown.wait("the end", &phase("✓ Moved"));
    // Each side has what both of its engines have done.
    let joined: Vec<Recording> = ["source", "destination"]
        .into_iter()
        .map(|side| {
            let resumed = |entry: &&Value| {
                entry["migration"]["side"] == side && entry["migration"]["resumed"] == true
            };
            let entries = listed(&dashboard, &id);
            let name = entries.iter().find(resumed).unwrap()["name"]
                .as_str()
                .unwrap();
            serde_json::from_str(&dashboard.get(&format!("/api/migrations/{name}"))).unwrap()
        })
        .collect();
    for ((joined, before), report) in joined.iter().zip(&before).zip(&reports) {
        let (first, both) = (
            before.state.as_ref().unwrap(),
            joined.state.as_ref().unwrap(),
        );
        let pids: Vec<_> = joined.engines.iter().map(|engine| engine.pid).collect();
        assert_eq!(pids, [before.migration.pid, joined.migration.pid]);
        assert_eq!(both.pages.urgent, first.pages.urgent + report.pages.urgent);
        assert_eq!(
            both.pages.background,
            first.pages.background + report.pages.background
        );
        assert_eq!(both.pages.precopy, first.pages.precopy);
        assert!(both.pages.precopy > 0, "hybrid");
        assert_eq!(both.downtime_ms, first.downtime_ms);
        assert_eq!(both.switchover, first.switchover);
        if joined.migration.side == Side::Destination {
            assert_eq!(
                both.requests.count,
                first.requests.count + report.requests.request_latency_us.count
            );
        }
        // The time without an engine is over.
        let outage = both
            .outages
            .iter()
            .find(|outage| outage.from_ms <= before.last_ms());
        assert!(outage.unwrap().to_ms.is_some(), "{:?}", both.outages);
        assert_eq!(joined.end.as_ref().unwrap().reason, "moved");
    }
    // The source's journal has its own time, which the recording of a killed engine may not have.
    match reports[0].downtime_ms {
        Some(_) => assert!(shown.fact("Paused for").contains("at most ")),
        None => assert_eq!(shown.fact("Paused for"), paused),
    }
    let rounds = shown.table("What each round sent, and what was dirty at its end");
    assert_eq!(rounds.len(), before[0].state.as_ref().unwrap().rounds.len());
    shown.evaluate("document.querySelectorAll('article details').forEach(e => e.open = true)");
    let engines = shown.table("Engines of this migration");
    assert_eq!(engines[0].len(), 5, "two on each side: {engines:?}");
    shown.screenshot("move-resumed");
    let metrics = dashboard.get("/metrics");
    for side in ["source", "destination"] {
        assert!(metrics.contains(&lost_metric(&id, side, 0)), "{metrics}");
    }
    shown.assert_clean();

    // The report has the same.
    shown.open_report();
    let rows = shown.table("Pages and page requests");
    for (name, pages) in [
        (
            "Urgent pages",
            joined[0].state.as_ref().unwrap().pages.urgent,
        ),
        (
            "Pages sent in pre-copy",
            joined[0].state.as_ref().unwrap().pages.precopy,
        ),
    ] {
        let row = vec![name.to_owned(), count(pages)];
        assert!(rows.contains(&row), "{row:?} {rows:?}");
    }
    shown.assert_clean();
    dashboard.end();
}
