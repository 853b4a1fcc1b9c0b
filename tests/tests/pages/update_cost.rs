//! What the live page costs the browser.

use std::time::Duration;

use hikkoshi_account::{Mode, Side};
use hikkoshi_status::StatusRecord;
use hikkoshi_tests::ShownPage;
use hikkoshi_tests::recordings::RecordedCase;

use crate::event_server::{EventServer, status};
use crate::feed::{Feed, open};

/// States that are sent, ten times a second: the end of a hybrid migration.
const STATES: usize = 120;

/// The time that the page's main thread takes for one update: a guest of 1 TiB, ten times a second,
/// with all tables open.
#[test]
#[ignore = "measures; make bench-dashboard runs it"]
fn updates_of_a_large_guest_are_cheap() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let case = RecordedCase {
        cells: 1024,
        cell_pages: 1 << 18,
        link_pages: 800_000,
        hot_rate: 3000,
        ..RecordedCase::new("large", Mode::Hybrid)
    };
    let recorded = case.record();
    let mut source = Feed::new(&server, &recorded, Side::Source);
    let mut destination = Feed::new(&server, &recorded, Side::Destination);
    let begin = recorded.states.len() - STATES;
    assert_eq!(recorded.states[begin].0.missing_pages, None, "pre-copy");
    for feed in [&mut source, &mut destination] {
        for state in recorded.states_of(feed.side).take(begin) {
            feed.recorder.add(state.clone());
        }
        feed.sent = begin;
    }
    open(&shown, &server, &[&source, &destination]);
    shown.evaluate(MEASURE);
    for (from_source, from_destination) in recorded.states.iter().skip(begin) {
        for (feed, state) in [(&source, from_source), (&destination, from_destination)] {
            server.send(&status(
                &feed.name,
                &StatusRecord::State(Box::new(state.clone())),
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let result = shown.evaluate("measured()");
    println!(
        "{} samples, {STATES} states of each side",
        source.recording().samples.len()
    );
    println!("{}", serde_json::to_string_pretty(&result).unwrap());
    shown.screenshot("live-large");
    assert!(result["updates"].as_u64().unwrap() > 0);
    shown.assert_clean();
}

/// Records how long parsing, updating, and layout and painting take. A message is handled after the
/// frame in which it was posted.
const MEASURE: &str = "(() => {
    const { live } = hikkoshi;
    document.querySelectorAll('details').forEach(element => (element.open = true));
    const times = { parse: [], update: [], whole: [], long: [] };
    const timed = (list, call) => {
        const begin = performance.now();
        const result = call();
        list.push(performance.now() - begin);
        return result;
    };
    const parse = JSON.parse;
    JSON.parse = text => timed(times.parse, () => parse(text));
    const draw = live.draw.bind(live);
    live.draw = now => {
        const begin = performance.now();
        timed(times.update, () => draw(now));
        const channel = new MessageChannel();
        channel.port1.onmessage = () => times.whole.push(performance.now() - begin);
        channel.port2.postMessage(0);
    };
    const views = {};
    for (const view of live.sections.views) {
        const update = view.update.bind(view);
        views[view.constructor.name] = [];
        view.update = migration => timed(views[view.constructor.name], () => update(migration));
    }
    new PerformanceObserver(list => times.long.push(...list.getEntries().map(e => e.duration)))
        .observe({ type: 'longtask' });
    globalThis.measured = () => {
        const summary = list => {
            const sorted = [...list].sort((a, b) => a - b);
            const at = part => Math.round(sorted[Math.floor((sorted.length - 1) * part)] * 100) / 100;
            return { count: list.length, median_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1) };
        };
        return {
            updates: times.update.length,
            views: Object.fromEntries(Object.entries(views).map(([name, list]) => [name, summary(list)])),
            parsing_a_state: summary(times.parse),
            update: summary(times.update),
            update_with_layout_and_painting: summary(times.whole),
            tasks_of_more_than_50_ms: times.long.length,
        };
    };
})()";
