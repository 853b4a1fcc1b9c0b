//! Reports.

use hikkoshi_account::{Mode, Side};
use hikkoshi_dashboard::{report, served_report_policy};
use hikkoshi_status::{Recording, Unknown};
use hikkoshi_tests::recordings::{Ending, RecordedCase};

use crate::event_server::EventServer;
use hikkoshi_tests::{ShownPage, count};

/// How long the guest of a recorded case was paused.
const PAUSED_FOR: &str = "about 4.21 ms, at most 4.38 ms";

/// Both sides of a migration.
fn both(case: &RecordedCase) -> Vec<Recording> {
    let recorded = case.record();
    vec![
        recorded.recording(Side::Source),
        recorded.recording(Side::Destination),
    ]
}

/// Opens a report as a file, as a user does.
fn open(shown: &ShownPage, name: &str, recordings: &[Recording]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("{name}.html"));
    std::fs::write(&file, report(recordings)).unwrap();
    shown.open(&format!("file://{}", file.display()));
    folder
}

#[test]
fn a_report_shows_what_happened() {
    let shown = ShownPage::start();
    let case = RecordedCase {
        outage: true,
        ..RecordedCase::new("database", Mode::Postcopy)
    };
    let recordings = both(&case);
    let _folder = open(&shown, "report-postcopy", &recordings);
    let source = recordings[0].state.as_ref().unwrap();
    let destination = recordings[1].state.as_ref().unwrap();

    // The summary, which is written without scripts.
    let rows = shown.table("Pages and page requests");
    let urgent = rows.iter().find(|row| row[0] == "Urgent pages").unwrap();
    assert_eq!(urgent[1], count(source.pages.urgent));
    let rows = shown.table("Time and data");
    assert!(
        rows.contains(&vec!["Guest paused for".to_owned(), PAUSED_FOR.to_owned()]),
        "{rows:?}"
    );

    // The views.
    assert_eq!(
        shown.table("Times without links after the handover"),
        [["0:00.5", "0:02.5", "2.00 s"]]
    );
    let text = shown.browser.text(".latency .figures").unwrap();
    let requests = &destination.requests;
    assert!(
        text.starts_with(&format!("{} requests:", count(requests.count))),
        "{text}"
    );
    assert!(text.ends_with("slowest 2.00 s"), "{text}");
    let course = shown.table("Phases, outages and messages, the newest first");
    let what = |text: &str| course.iter().filter(|row| row[2].contains(text)).count();
    assert_eq!(what("The links were lost"), 2, "{course:?}");
    assert_eq!(
        what("Post-copy: the guest runs at the destination"),
        1,
        "{course:?}"
    );
    assert_eq!(what("the guest was moved"), 2, "{course:?}");

    // An earlier map, chosen with the keyboard.
    let legend = shown.table("Pages by state");
    shown.evaluate("document.querySelector('.time input').focus()");
    shown.browser.press("Home").unwrap();
    let earlier = shown.table("Pages by state");
    assert_eq!(
        earlier[6],
        [
            "Not received: not yet, or unused",
            &count(1_054_720),
            "100 %",
            ""
        ]
    );
    shown.browser.press("ArrowRight").unwrap();
    shown.browser.press("ArrowRight").unwrap();
    let at_ms = recordings[1].frames[2].at_ms;
    let time = format!("0:{:02}.{}", at_ms / 1000, at_ms % 1000 / 100);
    assert_eq!(shown.browser.text(".time output").unwrap(), time);
    shown.browser.press("End").unwrap();
    assert_eq!(shown.table("Pages by state"), legend);
    shown.assert_fits_everywhere("report-postcopy");
    shown.assert_clean();
}

#[test]
fn several_migrations_are_compared() {
    let shown = ShownPage::start();
    let cases = [
        RecordedCase::new("web", Mode::Hybrid),
        RecordedCase::new("mail", Mode::Precopy),
        RecordedCase {
            ending: Ending::Cancelled(20),
            ..RecordedCase::new("build", Mode::Precopy)
        },
        RecordedCase {
            ending: Ending::Lost,
            ..RecordedCase::new("cache", Mode::Hybrid)
        },
    ];
    let recordings: Vec<_> = cases.iter().flat_map(both).collect();
    let _folder = open(&shown, "report-several", &recordings);
    let rows = shown.table("Migrations");
    let row = |name: &str| rows.iter().find(|row| row[0] == name).unwrap()[1..].to_vec();
    assert_eq!(
        row("Result"),
        ["moved", "moved", "stays at the source", "guest lost"]
    );
    assert_eq!(row("Mode"), ["hybrid", "precopy", "precopy", "hybrid"]);
    let again = |index: usize| {
        let state = recordings[2 * index].state.as_ref().unwrap();
        count(state.repeats.unwrap().precopy.pages)
    };
    assert_eq!(
        row("… again, because the guest had written to them"),
        [again(0), again(1), again(2), again(3)]
    );
    assert_ne!(again(1), "0");
    // Each has its own sections.
    let titles =
        shown.evaluate("[...document.querySelectorAll('article h2')].map(e => e.textContent)");
    assert_eq!(titles, serde_json::json!(["web", "mail", "build", "cache"]));
    let phases = shown.evaluate("[...document.querySelectorAll('.phase')].map(e => e.textContent)");
    assert_eq!(
        phases,
        serde_json::json!([
            "✓ Moved",
            "✓ Moved",
            "↩ Stays at the source",
            "✕ Guest lost"
        ])
    );
    // A bar is as long as its part of the longest one.
    let widths = shown.evaluate(
        "[...document.querySelector('.comparison svg').querySelectorAll('rect')]
            .map(bar => Number(bar.getAttribute('width')))",
    );
    let widths: Vec<f64> = serde_json::from_value(widths).unwrap();
    let total = |index: usize| {
        let end = recordings[2 * index].end.as_ref().unwrap();
        f64::from(u32::try_from(end.at_ms).unwrap())
    };
    assert!(
        (widths[2] / widths[0] - total(2) / total(0)).abs() < 0.01,
        "{widths:?}"
    );
    shown.assert_fits_everywhere("report-several");
    shown.assert_clean();
}

/// The tables that the report has without scripts have the same numbers.
#[test]
fn a_report_can_be_read_without_scripts() {
    let shown = ShownPage::start();
    let case = RecordedCase {
        outage: true,
        link_pages: 12_000,
        ..RecordedCase::new("web", Mode::Hybrid)
    };
    let recordings = both(&case);
    const REPEATS: &str = "Pages that were sent more than once";
    const RANGES: &str = "Ranges that the guest dirtied most";
    let folder = open(&shown, "report", &recordings);
    let with_scripts = [REPEATS, RANGES].map(|caption| shown.table(caption));
    drop(folder);
    shown.browser.set_scripts(false).unwrap();
    let _folder = open(&shown, "report", &recordings);
    assert_eq!(
        shown.evaluate("document.querySelector('article')"),
        serde_json::Value::Null
    );
    let rows = shown.table("Steps of the switchover at the source");
    assert_eq!(rows[4], ["destination ready", "2.12 ms", "3.94 ms"]);
    let rounds = shown.table("What each round sent, and what was dirty at its end");
    let round = recordings[0].state.as_ref().unwrap().rounds[0];
    assert_eq!(rounds[0][2], count(round.pages));
    let latencies = shown.table("Page requests by latency, from the fault to the installed page");
    let histogram = &recordings[1].state.as_ref().unwrap().requests.histogram;
    let counts: Vec<_> = latencies.iter().map(|row| row[1].clone()).collect();
    assert_eq!(
        counts,
        histogram
            .iter()
            .map(|bucket| count(bucket.count))
            .collect::<Vec<_>>()
    );
    let outages = shown.table("Times without links after the handover");
    assert_eq!(outages[0][2], "2.00 s");
    // Two cells in 40 are hot; the first ones were sent first, and so were known for longest.
    let hot = shown.table(RANGES);
    let rates = recordings[0].dirty_rates.as_ref().unwrap();
    let expected = [
        "pc.ram + 56 MiB to 72 MiB",
        "0x3800000",
        &count(rates.mean[7] + rates.mean[8]),
    ];
    assert_eq!(hot[0][..3], expected);
    assert_eq!((hot[0][4].as_str(), hot.len()), ("901", 10));
    assert_eq!(hot, with_scripts[1]);
    let repeats = shown.table(REPEATS);
    let of = recordings[0].state.as_ref().unwrap().repeats.unwrap();
    let why = "Sent in pre-copy, and again in post-copy: the guest had written to them";
    assert_eq!(repeats[0][..2], [why, &count(of.stale.pages)]);
    assert_eq!(repeats[1][1], count(of.resent.pages));
    assert!(of.stale.pages > 0 && of.resent.pages > 0 && repeats.len() == 2);
    let first: Vec<_> = with_scripts[0]
        .iter()
        .map(|row| row[..3].to_vec())
        .collect();
    assert_eq!(repeats, first);
    shown.screenshot("report-without-scripts");
    shown.assert_clean();
}

/// A recording of a result of `--json` that has not all, and one of a run that has only failed.
#[test]
fn what_is_not_known_is_not_shown_as_a_number() {
    let shown = ShownPage::start();
    let mut recordings = both(&RecordedCase::new("web", Mode::Hybrid));
    recordings.truncate(1);
    recordings.extend(both(&RecordedCase::new("mail", Mode::Hybrid)));
    recordings.truncate(2);
    let (known, failed) = (recordings[0].clone(), &mut recordings[1]);
    failed.migration.mode = None;
    failed.migration.started_unix_ms = 0;
    failed.migration.pid = 0;
    (failed.migration.host, failed.migration.peer) = (String::new(), String::new());
    (failed.state, failed.dirty_rates) = (None, None);
    (failed.samples, failed.frames, failed.notices) = (Vec::new(), Vec::new(), Vec::new());
    failed.unknown = vec![
        Unknown::Side,
        Unknown::Engine,
        Unknown::Mode,
        Unknown::Began,
        Unknown::Duration,
        Unknown::Memory,
        Unknown::Map,
        Unknown::Outages,
        Unknown::Rounds,
    ];
    let end = failed.end.as_mut().unwrap();
    (end.at_ms, end.exit_status, end.account) = (0, 1, None);
    end.message = "the links failed".into();
    let mut partly = known.clone();
    partly.migration.id = "partly".into();
    partly.unknown = vec![Unknown::Map, Unknown::Outages];
    partly.state.as_mut().unwrap().repeats = None;
    (partly.dirty_rates, partly.frames) = (None, Vec::new());
    recordings.push(partly);
    let _folder = open(&shown, "report-unknown", &recordings);
    let rows = shown.table("Migrations");
    let row = |name: &str| {
        let row = rows.iter().find(|row| row[0] == name);
        row.unwrap_or_else(|| panic!("no row {name}: {rows:?}"))[2..].to_vec()
    };
    assert_eq!(row("Result"), ["stays at the source", "moved"]);
    assert_eq!(row("What happened")[0], "the links failed");
    for name in [
        "From",
        "To",
        "Mode",
        "Began",
        "Total time",
        "Guest memory",
        "Bytes sent",
    ] {
        assert_eq!(row(name)[0], "–", "{name}");
        assert_ne!(row(name)[1], "–", "{name}");
    }
    for name in ["Outages", "… again, because the guest had written to them"] {
        assert_eq!(row(name), ["–", "–"], "{name}");
    }
    // The views of the pages' scripts.
    let text = shown.evaluate("document.querySelector('#main').innerText");
    let text = text.as_str().unwrap();
    assert!(!text.contains("1970") && !text.contains("NaN"), "{text}");
    let texts = |what: &str| {
        let list = format!("[...document.querySelectorAll('{what}')].map(e => e.hidden)");
        serde_json::from_value::<Vec<bool>>(shown.evaluate(&list)).unwrap()
    };
    assert_eq!(texts(".memory-map"), [false, true, true]);
    assert_eq!(texts(".repeats"), [false, true, false]);
    let notes = shown.evaluate("[...document.querySelectorAll('.repeats')].map(e => e.innerText)");
    let notes: Vec<String> = serde_json::from_value(notes).unwrap();
    assert!(
        notes[2].contains("What was sent twice is not known"),
        "{notes:?}"
    );
    shown.assert_clean();
}

/// What was received is not called sent.
#[test]
fn a_report_of_a_destination_alone_says_what_was_received() {
    let shown = ShownPage::start();
    let mut recordings = both(&RecordedCase::new("web", Mode::Hybrid));
    recordings.remove(0);
    let _folder = open(&shown, "report-destination", &recordings);
    let texts = [
        shown.table("Time and data"),
        shown.table("Pages and page requests"),
    ]
    .concat();
    let names: Vec<_> = texts.iter().map(|row| &*row[0]).collect();
    for name in [
        "Bytes received",
        "Pages received in pre-copy",
        "Pages received as zero",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    for name in ["Bytes sent", "Pages sent in pre-copy", "Pages sent as zero"] {
        assert!(!names.contains(&name), "{names:?}");
    }
    shown.assert_clean();
}

/// The policy forbids what is not in the file, also if a server sends the report.
#[test]
fn a_report_runs_nothing_that_it_does_not_declare() {
    let shown = ShownPage::start();
    let server = EventServer::start();
    let recordings = both(&RecordedCase::new("web", Mode::Hybrid));
    server.add_page(
        "/report/web.html",
        report(&recordings),
        served_report_policy(),
    );
    shown.open(&format!("{}report/web.html", server.url));
    shown.wait("the views", "document.querySelector('article')");
    shown.assert_clean();
    // A script that came in would not run, and an image would not be fetched.
    shown.evaluate(
        "(() => {
            const script = document.createElement('script');
            script.textContent = 'document.title = \"changed\"';
            document.body.append(script);
            const image = document.createElement('img');
            image.src = 'http://localhost:9/x';
            document.body.append(image);
        })()",
    );
    assert_ne!(shown.evaluate("document.title"), "changed");
    shown.wait(
        "the image to be refused",
        "document.querySelector('img').complete",
    );
    let violations = shown.browser.csp_violations().unwrap();
    let mut directives: Vec<_> = violations
        .iter()
        .map(|found| found.directive.as_str())
        .collect();
    directives.sort_unstable();
    // The page's own policy, and the same one from the server.
    directives.dedup();
    assert_eq!(directives, ["img-src", "script-src-elem"]);
    for request in shown.browser.foreign_requests().unwrap() {
        assert_eq!(request.failure.as_deref(), Some("csp"), "{request:?}");
    }
}
