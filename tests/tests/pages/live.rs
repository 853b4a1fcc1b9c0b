//! The live page shows what engines record, while a migration moves.

use hikkoshi_account::{Converges, Mode, Side};
use hikkoshi_status::StatusRecord;
use hikkoshi_tests::recordings::RecordedCase;
use hikkoshi_tests::{ShownPage, count};
use serde_json::json;

use crate::event_server::{EventServer, status};
use crate::feed::{Feed, legend, open, stages};

#[test]
fn a_migration_is_shown_while_it_moves() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase::new("web", Mode::Hybrid).record();
    let mut source = Feed::new(&server, &recorded, Side::Source);
    let mut destination = Feed::new(&server, &recorded, Side::Destination);
    open(&shown, &server, &[&source, &destination]);

    // Pre-copy: the source's map.
    for feed in [&mut source, &mut destination] {
        feed.send_until(|state| state.at_ms == 2000);
    }
    shown.wait_for_state(&source.name, 2000);
    assert_eq!(shown.browser.text(".phase").unwrap(), "Pre-copy, round 1");
    assert_eq!(legend(&shown), source.legend());
    assert_eq!(stages(&shown), ["Owned", "Receiving"]);
    assert_eq!(shown.fact("Guest"), "runs at the source");
    assert_eq!(shown.fact("Paused for"), "none");
    assert!(
        shown.fact("Time left").starts_with("about "),
        "{}",
        shown.fact("Time left")
    );
    assert_eq!(shown.color_of_cell(1, false), shown.color("--sent"));
    assert_eq!(shown.color_of_cell(500, false), shown.color("--unsent"));
    let rows = shown.table("What each round sent, and what was dirty at its end");
    let round = source.recording().state.as_ref().unwrap().rounds[0];
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][0], "1, now");
    assert_eq!(rows[0][2], count(round.pages));
    shown.screenshot("live-precopy");

    // Post-copy: the destination's map, and its latencies.
    for feed in [&mut source, &mut destination] {
        feed.send_until(|state| state.requests.count > 0 || state.pages.urgent > 0);
    }
    shown.wait_for_state(&destination.name, destination.at_ms());
    assert_eq!(shown.browser.text(".phase").unwrap(), "Post-copy");
    assert_eq!(legend(&shown), destination.legend());
    assert_eq!(stages(&shown), ["Handed over", "Running"]);
    assert_eq!(
        shown.fact("Paused for"),
        "about 4.21 ms, at most 4.38 ms (limit 300 ms)"
    );
    let map = &destination.recording().state.as_ref().unwrap().map;
    let cells = 0..map.missing.len();
    let is_missing = |cell: &usize| map.missing[*cell] > 1024 && map.waiting[*cell] == 0;
    let cell = cells.rev().find(is_missing).unwrap();
    assert_eq!(shown.color_of_cell(cell, true), shown.color("--missing"));
    assert_eq!(shown.color_of_cell(7, false), shown.color("--background"));
    assert_latencies(&shown, &destination);
    assert_steps(&shown);
    shown.assert_fits_everywhere("live-postcopy");

    // The end.
    for feed in [&mut source, &mut destination] {
        feed.send_until(|_| false);
        feed.end();
    }
    shown.wait(
        "the end",
        "document.querySelector('.phase').textContent.includes('Moved')",
    );
    assert_eq!(stages(&shown), ["Done", "Complete"]);
    assert_eq!(legend(&shown), destination.legend());
    assert_latencies(&shown, &destination);
    assert_samples(&shown, &source);
    assert_samples(&shown, &destination);
    shown.assert_clean();
}

/// The table and the chart of latencies have the buckets of the recording.
fn assert_latencies(shown: &ShownPage, destination: &Feed<'_>) {
    let requests = &destination.recording().state.as_ref().unwrap().requests;
    shown.evaluate("document.querySelectorAll('.latency details').forEach(e => e.open = true)");
    let rows = shown.table("Page requests by latency, from the fault to the installed page");
    let counts: Vec<_> = rows.into_iter().map(|row| row[1].clone()).collect();
    let buckets = requests.histogram.iter().map(|bucket| count(bucket.count));
    assert_eq!(counts, buckets.collect::<Vec<_>>());
    let text = shown.browser.text(".latency .figures").unwrap();
    let begin = format!("{} requests: mean ", count(requests.count));
    assert!(text.starts_with(&begin), "{text}");
    let drawn = shown.evaluate(
        "hikkoshi.live.sections.views.find(view => view.marks).chart.plot.data[1]
            .map(place => Math.round(10 ** place - 1))",
    );
    let buckets: Vec<_> = requests
        .histogram
        .iter()
        .map(|bucket| bucket.count)
        .collect();
    assert_eq!(drawn, json!(buckets));
}

/// A time without links is an alarm, with what it means for the guest, and the progress stays.
#[test]
fn an_outage_is_shown_as_an_alarm() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase {
        outage: true,
        ..RecordedCase::new("web", Mode::Postcopy)
    };
    let recorded = recorded.record();
    let mut destination = Feed::new(&server, &recorded, Side::Destination);
    open(&shown, &server, &[&destination]);
    let lasts = |state: &hikkoshi_account::State| {
        let lasted = state.outage().map(|outage| state.at_ms - outage.from_ms);
        lasted == Some(1000)
    };
    destination.send_until(lasts);
    let waiting = destination
        .recording()
        .state
        .as_ref()
        .unwrap()
        .waiting_pages;
    assert!(waiting > 1, "{waiting}");
    shown.wait_for_state(&destination.name, destination.at_ms());
    let phase = shown.browser.text(".phase").unwrap();
    assert_eq!(phase, "✕ No link (post-copy)");
    let text = shown.browser.text(".summary .outage").unwrap();
    let expected = format!(
        "No link for 1.00 s, waiting without a limit. The guest waits for {waiting} pages."
    );
    assert_eq!(text, expected);
    let colour = "getComputedStyle(document.querySelector('.summary .outage')).color";
    let phases = "getComputedStyle(document.querySelector('.phase')).color";
    assert_eq!(shown.evaluate(colour), shown.evaluate(phases));
    assert_eq!(
        shown.evaluate("document.querySelector('nav a').className"),
        json!("bad")
    );
    // The links are back.
    destination.send_until(|state| state.outages.len() == 1 && state.outage().is_none());
    shown.wait_for_state(&destination.name, destination.at_ms());
    assert_eq!(shown.browser.text(".phase").unwrap(), "Post-copy");
    assert!(shown.evaluate("document.querySelector('.summary .outage').hidden") == json!(true));
    shown.assert_clean();
}

/// Each step of the switchover has its time, and its part of the bar.
fn assert_steps(shown: &ShownPage) {
    let rows = shown.table("Steps of the switchover at the source");
    assert_eq!(rows[4], ["5. destination ready", "2.12 ms", "3.94 ms"]);
    assert_eq!(
        shown
            .table("Steps of the switchover at the destination")
            .len(),
        7
    );
    let widths = shown.evaluate(
        "[...document.querySelector('.steps').querySelectorAll('rect')]
            .map(part => parseFloat(part.getAttribute('width')))",
    );
    let widths: Vec<f64> = serde_json::from_value(widths).unwrap();
    assert_eq!(widths.len(), 7);
    assert!((widths[4] - 2.12 / 4.61 * 100.0).abs() < 0.1, "{widths:?}");
    assert!(
        (widths.iter().sum::<f64>() - 100.0).abs() < 0.1,
        "{widths:?}"
    );
}

/// The page has the samples that the engine's recorder has.
pub(crate) fn assert_samples(shown: &ShownPage, feed: &Feed<'_>) {
    let samples = shown.evaluate(&format!(
        "hikkoshi.live.recordings.get({}).data.samples",
        json!(feed.name)
    ));
    let samples: Vec<hikkoshi_status::Sample> = serde_json::from_value(samples).unwrap();
    let recorded = &feed.recording().samples;
    assert_eq!(samples.len(), recorded.len());
    for (shown, recorded) in samples.iter().zip(recorded) {
        assert_eq!(shown.at_ms, recorded.at_ms);
        assert!((shown.bytes_per_second - recorded.bytes_per_second).abs() < 1e-3);
        assert_eq!(shown.missing_pages, recorded.missing_pages);
        let difference = shown.latency_us.unwrap_or(-1.0) - recorded.latency_us.unwrap_or(-1.0);
        assert!(difference.abs() < 1e-3, "{shown:?} {recorded:?}");
    }
}

/// The page thins what it keeps of a long migration as the engine does.
#[test]
fn a_long_migration_has_as_many_samples_as_the_engine_records() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase {
        cells: 3,
        cell_pages: 2048,
        ..RecordedCase::new("web", Mode::Precopy)
    };
    let recorded = recorded.record();
    let mut feed = Feed::new(&server, &recorded, Side::Source);
    open(&shown, &server, &[&feed]);
    let mut state = recorded.states[1].0.clone();
    (state.converges, state.time_left) = (Some(Converges::No), None);
    for tick in 0..3000_u64 {
        state.at_ms = tick * 100;
        state.bytes.precopy += 1000 + tick;
        server.send(&status(
            &feed.name,
            &StatusRecord::State(Box::new(state.clone())),
        ));
        feed.recorder.add(state.clone());
    }
    shown.wait_for_state(&feed.name, state.at_ms);
    assert_eq!(shown.fact("Time left"), "pre-copy does not converge");
    assert_eq!(feed.recording().samples.len(), 750);
    assert_samples(&shown, &feed);
    let name = json!(feed.name);
    let times = format!("hikkoshi.live.recordings.get({name}).data.frames.map(f => f.at_ms)");
    let frames: Vec<_> = feed
        .recording()
        .frames
        .iter()
        .map(|frame| frame.at_ms)
        .collect();
    assert_eq!(shown.evaluate(&times), json!(frames));
    shown.assert_clean();
}

/// A limit lets bytes pass in pieces. The chart shows the rate of a second, or since the sample
/// before if that is longer ago, and not the pieces.
#[test]
fn with_a_limit_the_rates_are_level() {
    const RATE: u64 = 20 << 20;
    const PIECE_MS: u64 = 300;
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase::new("web", Mode::Precopy).record();
    let feed = Feed::new(&server, &recorded, Side::Source);
    open(&shown, &server, &[&feed]);
    let mut state = recorded.states[1].0.clone();
    let near = (0..50).map(|tick| tick * 100);
    // The page is behind, or the samples of a long migration were thinned.
    let far = (1..=5).map(|tick| 4900 + tick * 9 * PIECE_MS);
    for at_ms in near.chain(far) {
        state.at_ms = at_ms;
        state.bytes.precopy = at_ms / PIECE_MS * PIECE_MS * RATE / 1000;
        // What the engine has measured over the last second.
        state.bytes_per_second = RATE as f64;
        if at_ms >= 5000 {
            state.bytes_per_second = 0.0;
        }
        server.send(&status(
            &feed.name,
            &StatusRecord::State(Box::new(state.clone())),
        ));
    }
    shown.wait_for_state(&feed.name, state.at_ms);
    let drawn = "hikkoshi.live.sections.views.find(view => view.traffic).traffic.plot.data";
    shown.wait(
        "the chart",
        &format!("{drawn}[0].at(-1) === {}", state.at_ms),
    );
    let rates: Vec<f64> = serde_json::from_value(shown.evaluate(&format!("{drawn}[1]"))).unwrap();
    assert_eq!(rates.len(), 55);
    let is_level = |rate: &f64| (rate / RATE as f64 - 1.0).abs() < 0.1;
    assert!(rates.iter().all(is_level), "{rates:?}");
    shown.assert_clean();
}
