//! A migration whose engines were killed, and that others have resumed.

use hikkoshi_account::{Mode, Side};
use hikkoshi_dashboard::report;
use hikkoshi_status::{Recording, join_all};
use hikkoshi_tests::recordings::{GAP_MS, RecordedCase, RecordedMigration};
use hikkoshi_tests::{ShownPage, count, legend_of};

use crate::event_server::{EventServer, status};

/// A migration, and the time of a state in its post-copy.
fn recorded() -> (RecordedMigration, u64) {
    let case = RecordedCase {
        link_pages: 12_000,
        ..RecordedCase::new("web", Mode::Hybrid)
    };
    let recorded = case.record();
    let missing = |state: &&hikkoshi_account::State| state.missing_pages.is_some();
    let postcopy: Vec<_> = recorded
        .states_of(Side::Destination)
        .filter(missing)
        .collect();
    let middle = postcopy[postcopy.len() / 2].at_ms;
    (recorded, middle)
}

/// What is shown of both halves is what one engine on each side would have recorded.
fn assert_both_halves(shown: &ShownPage, whole: &[Recording; 2]) {
    shown.evaluate("document.querySelectorAll('article details').forEach(e => e.open = true)");
    let [source, destination] = whole.each_ref().map(|it| it.state.as_ref().unwrap());
    assert_eq!(
        shown.fact("Paused for"),
        "about 4.21 ms, at most 4.38 ms (limit 300 ms)"
    );
    let steps = shown.table("Steps of the switchover at the source");
    assert_eq!(steps[4], ["5. destination ready", "2.12 ms", "3.94 ms"]);
    let rounds = shown.table("What each round sent, and what was dirty at its end");
    assert_eq!(rounds.len(), source.rounds.len());
    assert_eq!(rounds[0][2], count(source.rounds[0].pages));
    let text = shown.browser.text(".latency .figures").unwrap();
    let requests = format!("{} requests:", count(destination.requests.count));
    assert!(text.starts_with(&requests), "{text}");
    let rows = shown.table("Page requests by latency, from the fault to the installed page");
    let counts: Vec<_> = rows.into_iter().map(|row| row[1].clone()).collect();
    let buckets = destination.requests.histogram.iter();
    let buckets: Vec<_> = buckets.map(|bucket| count(bucket.count)).collect();
    assert_eq!(counts, buckets);
    let rows = shown.table("Pages by state").into_iter().take(7);
    let legend: Vec<_> = rows.map(|row| [row[0].clone(), row[1].clone()]).collect();
    assert_eq!(legend, legend_of(&whole[1]));
    // From the last state of the engine that was killed to the new links.
    let outages = shown.table("Times without links after the handover");
    assert_eq!(outages.len(), 1, "{outages:?}");
    assert_eq!((GAP_MS, &*outages[0][2]), (60_000, "60.1 s"));
    let engines = shown.table("Engines of this migration");
    let row = |name: &str| engines.iter().find(|row| row[0] == name).unwrap()[1..].to_vec();
    assert_eq!(row("process"), ["4711", "4712", "815", "816"]);
    let result = row("result");
    assert!(result[0].contains("engine not reached"), "{result:?}");
    assert!(result[1].contains("moved (status 0"), "{result:?}");
    let course = shown.table("Phases, outages and messages, the newest first");
    let what = |text: &str| course.iter().filter(|row| row[2].contains(text)).count();
    assert_eq!(what("(process 4711) was killed"), 1, "{course:?}");
    assert_eq!(
        what("(process 816) has resumed the migration"),
        1,
        "{course:?}"
    );
    assert_eq!(what("the guest was moved"), 2, "{course:?}");
}

#[test]
fn a_report_of_a_resumed_migration_has_both_halves() {
    let shown = ShownPage::start();
    let (recorded, at_ms) = recorded();
    let sides = [Side::Source, Side::Destination];
    let whole = sides.map(|side| recorded.recording(side));
    let parts = sides.map(|side| recorded.interrupted(side, at_ms));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report-resumed.html");
    std::fs::write(&file, report(&parts.concat())).unwrap();
    shown.open(&format!("file://{}", file.display()));
    let rows = shown.table("Time and data");
    let row = |name: &str, value: String| {
        let row = vec![name.to_owned(), value];
        assert!(rows.contains(&row), "{row:?} {rows:?}");
    };
    row("Guest paused for", "about 4.21 ms, at most 4.38 ms".into());
    let source = whole[0].state.as_ref().unwrap();
    row("Rounds of pre-copy", source.rounds.len().to_string());
    let pages = shown.table("Pages and page requests");
    for (name, value) in [
        ("Pages sent in pre-copy", source.pages.precopy),
        ("Pages sent as zero", source.pages.zero),
        ("Urgent pages", source.pages.urgent),
        ("Background pages", source.pages.background),
    ] {
        assert!(
            pages.contains(&vec![name.to_owned(), count(value)]),
            "{name}: {pages:?}"
        );
    }
    assert_both_halves(&shown, &whole);
    shown.assert_fits_everywhere("report-resumed");
    shown.assert_clean();
}

/// The dashboard sends the recording of the second engine joined to the first one's; it may send
/// the first one, too.
#[test]
fn the_page_shows_a_resumed_migration_as_one() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let (recorded, at_ms) = recorded();
    let sides = [Side::Source, Side::Destination];
    let whole = sides.map(|side| recorded.recording(side));
    let mut events = Vec::new();
    for side in sides {
        let parts = recorded.interrupted(side, at_ms);
        let joined = join_all(parts.to_vec()).remove(0);
        // In both orders.
        let mut sent = [("killed", parts[0].clone()), ("resumed", joined)];
        if side == Side::Source {
            sent.reverse();
        }
        events.extend(sent.map(|(name, recording)| {
            let record = hikkoshi_status::StatusRecord::Recording(Box::new(recording));
            status(&format!("{side:?}-{name}"), &record)
        }));
    }
    server.begin_with(events);
    shown.open(&server.url);
    shown.wait(
        "all",
        "hikkoshi.live.recordings.size === 4 && !hikkoshi.live.changed",
    );
    let headings = "[...document.querySelectorAll('nav h2')].map(e => e.textContent).join()";
    assert_eq!(shown.evaluate(headings), "In progress (0),Ended (1)");
    assert_eq!(shown.browser.text(".phase").unwrap(), "✓ Moved");
    let urgent = "hikkoshi.live.migrations[0].source.data.state.pages.urgent";
    let pages = whole[0].state.as_ref().unwrap().pages;
    assert_eq!(shown.evaluate(urgent), pages.urgent);
    let reports = "[...document.querySelectorAll('#reports a')].map(e => e.textContent).join()";
    assert_eq!(
        shown.evaluate(reports),
        "Report of the destination,Report of the source"
    );
    assert_both_halves(&shown, &whole);
    shown.screenshot("live-resumed");
    shown.assert_clean();
}
