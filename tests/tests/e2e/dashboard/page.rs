//! The dashboard's page in a browser, during a real move.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::Side;
use hikkoshi_status::Recording;
use hikkoshi_tests::{
    Breakpoint, Guest, MessageKind, MigrationPlan, ShownPage, TestEnv, busy_guest, count,
    eventually, legend_of,
};
use serde_json::{Value, json};

use super::{Dashboard, run_folder};

/// The names of both sides' recordings: source, destination.
fn names(dashboard: &Dashboard) -> [String; 2] {
    let list: Value = serde_json::from_str(&dashboard.get("/api/migrations")).unwrap();
    ["source", "destination"].map(|side| {
        let entries = list.as_array().unwrap();
        let entry = entries
            .iter()
            .find(|entry| entry["migration"]["side"] == side);
        entry.unwrap()["name"].as_str().unwrap().to_owned()
    })
}

fn recording(dashboard: &Dashboard, name: &str) -> Recording {
    serde_json::from_str(&dashboard.get(&format!("/api/migrations/{name}"))).unwrap()
}

/// A guest is moved by post-copy and held in it: both sides, the map and the stages are shown as
/// the engines recorded them. Then it is released: the end, and the report.
///
/// Not by hybrid: there, a loaded machine can send the last pages before the twentieth request.
#[test]
fn a_browser_shows_a_real_move() {
    let env = TestEnv::new();
    let folder = run_folder(&env);
    let dashboard = Dashboard::start(&folder);
    let shown = ShownPage::start();
    shown.open(&format!("http://{}/", dashboard.address));
    shown.wait(
        "an empty page",
        "document.querySelector('#connection').className === 'on'",
    );
    assert!(
        shown
            .browser
            .text("#empty")
            .unwrap()
            .starts_with("No migrations")
    );

    let mut guest = Guest::boot(&env, busy_guest());
    let plan = MigrationPlan::new("postcopy")
        .journals_at(&folder, &folder)
        .hold_at(Breakpoint::after(MessageKind::Request).nth(20));
    let migration = guest.start_migration(&plan);
    migration.wait_held();
    let phase = "document.querySelector('.phase').textContent === 'Post-copy'";
    shown.wait("post-copy", phase);
    shown.wait("both sides", "hikkoshi.live.recordings.size === 2");
    let stages = "[...document.querySelectorAll('.stages [aria-current=step] strong')]
        .map(stage => stage.textContent).join()";
    shown.wait("the stages", &format!("{stages} === 'Handed over,Running'"));
    assert_eq!(shown.fact("Guest"), "runs at the destination");
    // While the messages are held, nothing changes any more after a while: the page shows the
    // destination's last state, on its map and as a number.
    let [_, destination] = names(&dashboard);
    let rows = "[...document.querySelectorAll('.legend tbody tr')].slice(0, 7)
        .map(row => [row.cells[0].textContent, row.cells[1].textContent])";
    let mut last = None;
    eventually("the state of the destination", || {
        let there = recording(&dashboard, &destination);
        let missing = there.state.as_ref().unwrap().missing_pages;
        let missing = format!("{} page", count(missing.unwrap()));
        let expected = json!(legend_of(&there));
        last = Some(there);
        let rows: Value = shown.browser.evaluate(rows).map_err(|e| e.to_string())?;
        let fact = shown.fact("Missing");
        match rows == expected && fact.starts_with(&missing) {
            true => Ok(()),
            false => Err(format!(
                "{rows} and {fact} instead of {expected} and {missing}"
            )),
        }
    });
    let there = last.unwrap();
    assert_eq!(there.migration.side, Side::Destination);
    assert!(there.state.unwrap().missing_pages > Some(0));
    shown.screenshot("move-postcopy");

    migration.relay().release();
    let (exits, finished) = migration.wait();
    guest.complete_migration(&exits, finished, "running");
    let ended = "document.querySelector('.phase').textContent === '✓ Moved'";
    shown.wait("the end", ended);
    shown.wait("the stages", &format!("{stages} === 'Done,Complete'"));
    let [source, destination] = names(&dashboard).map(|name| recording(&dashboard, &name));
    let requests = &destination.state.as_ref().unwrap().requests;
    let text = shown.browser.text(".latency .figures").unwrap();
    assert!(
        text.starts_with(&format!("{} requests:", count(requests.count))),
        "{text}"
    );
    let steps = shown.table("Steps of the switchover at the source");
    assert_eq!(steps.len(), source.state.as_ref().unwrap().switchover.len());
    assert!(
        steps
            .iter()
            .any(|step| step[0].ends_with("device state sent")),
        "{steps:?}"
    );
    assert_eq!(shown.fact("Missing"), "0 pages (0 B)");
    shown.assert_fits_everywhere("move-ended");
    shown.assert_clean();

    // The report of the dashboard, under its own policy.
    shown.open_report();
    let rows = shown.table("Pages and page requests");
    let urgent = count(source.state.as_ref().unwrap().pages.urgent);
    assert!(
        rows.contains(&vec!["Urgent pages".to_owned(), urgent]),
        "{rows:?}"
    );
    shown.assert_clean();
    dashboard.end();
}
