//! The live page.

use hikkoshi_status::{End, Record, Recorder, Recording, Side};
use hikkoshi_tests::recordings::{Ending, RecordedCase, RecordedMigration};
use serde_json::json;

use crate::event_server::{EventServer, event, status};
use hikkoshi_tests::{ShownPage, count, pages_by_state};

/// One side of a recorded migration that is sent to the page, state by state.
struct Feed<'a> {
    server: &'a EventServer,
    name: String,
    recorded: &'a RecordedMigration,
    side: Side,
    recorder: Recorder,
    sent: usize,
}

impl<'a> Feed<'a> {
    fn new(server: &'a EventServer, recorded: &'a RecordedMigration, side: Side) -> Self {
        let recorder = recorded.recorder(side);
        let name = format!("{}-{side:?}", recorder.recording().migration.guest);
        Self {
            server,
            name,
            recorded,
            side,
            recorder,
            sent: 0,
        }
    }

    /// What a new connection gets of it.
    fn first(&self) -> String {
        status(
            &self.name,
            &Record::Recording(Box::new(self.recorder.recording().clone())),
        )
    }

    /// Sends the next states until one is as said, and all if none is.
    fn send_until(&mut self, last: impl Fn(&hikkoshi_status::State) -> bool) {
        for state in self.recorded.states_of(self.side).skip(self.sent) {
            self.server
                .send(&status(&self.name, &Record::State(Box::new(state.clone()))));
            self.recorder.add(state.clone());
            self.sent += 1;
            if last(state) {
                break;
            }
        }
    }

    fn end(&mut self) {
        let end: End = self.recorded.end_of(self.side).clone();
        self.server
            .send(&status(&self.name, &Record::End(end.clone())));
        self.recorder.end(end);
    }

    fn recording(&self) -> &Recording {
        self.recorder.recording()
    }

    fn at_ms(&self) -> u64 {
        self.recording().state.as_ref().unwrap().at_ms
    }

    /// What the legend of the map must show.
    fn legend(&self) -> Vec<(String, String)> {
        let recording = self.recording();
        let pages = pages_by_state(recording, recording.state.as_ref().unwrap());
        pages
            .into_iter()
            .map(|(name, pages)| (name, count(pages)))
            .collect()
    }
}

/// Opens the page with these feeds.
fn open(shown: &ShownPage, server: &EventServer, feeds: &[&Feed<'_>]) {
    server.begin_with(feeds.iter().map(|feed| feed.first()).collect());
    shown.open(&server.url);
    let all = format!("hikkoshi.live.recordings.size === {}", feeds.len());
    shown.wait("the recordings", &all);
}

fn legend(shown: &ShownPage) -> Vec<(String, String)> {
    let rows = shown.table("Pages by state").into_iter().take(7);
    rows.map(|row| (row[0].clone(), row[1].clone())).collect()
}

fn stages(shown: &ShownPage) -> Vec<String> {
    let stages = shown.evaluate(
        "[...document.querySelectorAll('.stages [aria-current=step] strong')].map(e => e.textContent)",
    );
    serde_json::from_value(stages).unwrap()
}

#[test]
fn a_migration_is_shown_while_it_moves() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase::new("web", "hybrid").record();
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
    assert_eq!(stages(&shown), ["HandedOver", "Running"]);
    assert_eq!(shown.fact("Paused for"), "4.38 ms (limit 300 ms)");
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
fn assert_samples(shown: &ShownPage, feed: &Feed<'_>) {
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
        ..RecordedCase::new("web", "hybrid")
    };
    let recorded = recorded.record();
    let mut feed = Feed::new(&server, &recorded, Side::Source);
    open(&shown, &server, &[&feed]);
    let mut state = recorded.states[1].0.clone();
    for tick in 0..3000_u64 {
        state.at_ms = tick * 100;
        state.bytes.precopy += 1000 + tick;
        server.send(&status(&feed.name, &Record::State(Box::new(state.clone()))));
        feed.recorder.add(state.clone());
    }
    shown.wait_for_state(&feed.name, state.at_ms);
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

#[test]
fn a_migration_and_a_cell_are_chosen_with_the_keyboard() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let records = [
        RecordedCase::new("web", "hybrid").record(),
        RecordedCase::new("mail", "precopy").record(),
    ];
    let mut feeds: Vec<_> = records
        .iter()
        .map(|recorded| Feed::new(&server, recorded, Side::Source))
        .collect();
    open(&shown, &server, &feeds.iter().collect::<Vec<_>>());
    for feed in &mut feeds {
        feed.send_until(|state| state.at_ms == 1000);
        shown.wait_for_state(&feed.name, 1000);
    }
    let press = |key: &str| shown.browser.press(key).unwrap();
    assert_eq!(shown.browser.text("article h2").unwrap(), "web");

    press("Tab");
    assert_eq!(shown.browser.focused().unwrap(), "a Skip to the migration");
    let visible = "document.activeElement.getBoundingClientRect().top >= 0";
    assert_eq!(shown.evaluate(visible), true);
    press("Tab");
    assert!(
        shown
            .browser
            .focused()
            .unwrap()
            .contains("Report of the source")
    );
    press("Tab");
    assert!(shown.browser.focused().unwrap().contains("web"));
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(shown.evaluate(outline), "solid");
    press("ArrowDown");
    assert!(shown.browser.focused().unwrap().contains("mail"));
    press("Enter");
    shown.wait(
        "the other migration",
        "document.querySelector('article h2').textContent === 'mail'",
    );
    let current = "document.querySelector('nav [aria-current] .guest').textContent";
    assert_eq!(shown.evaluate(current), "mail");
    // Its heading has the focus, so that a screen reader goes on there.
    shown.wait("the focus", "document.activeElement.localName === 'h2'");

    // On to the map.
    for _ in 0..10 {
        if shown.browser.focused().unwrap().starts_with("canvas") {
            break;
        }
        press("Tab");
    }
    assert_eq!(
        shown.browser.focused().unwrap(),
        "canvas Cell of the memory map"
    );
    let cell = |shown: &ShownPage| shown.browser.text(".cell-name").unwrap();
    assert_eq!(cell(&shown), "No cell chosen");
    press("ArrowRight");
    assert_eq!(cell(&shown), "Cell 1 of 515: pc.ram + 0 B to 8 MiB");
    press("ArrowRight");
    assert_eq!(cell(&shown), "Cell 2 of 515: pc.ram + 8 MiB to 16 MiB");
    press("ArrowDown");
    let columns =
        shown.evaluate("hikkoshi.live.sections.views.find(view => view.grid).grid.columns");
    let below = 2 + columns.as_u64().unwrap();
    assert!(
        cell(&shown).starts_with(&format!("Cell {below} of 515: ")),
        "{}",
        cell(&shown)
    );
    press("End");
    assert!(cell(&shown).starts_with("Cell 515 of 515: 0000:00:02.0/vga.vram, pc.bios, "));
    let legend = shown.table("Pages by state");
    assert_eq!(
        legend[6][3],
        count(2048),
        "the last cell is not sent yet: {legend:?}"
    );
    let spoken = shown.evaluate("document.querySelector('canvas[role=slider]').ariaValueText");
    assert!(
        spoken
            .as_str()
            .unwrap()
            .ends_with("Clean or not sent: 2,048"),
        "{spoken}"
    );
    press("Home");
    press("ArrowLeft");
    assert!(cell(&shown).starts_with("Cell 1 of 515"));
    press("Escape");
    assert_eq!(cell(&shown), "No cell chosen");
    shown.assert_clean();
}

#[test]
fn a_lost_connection_and_a_lost_engine_are_shown() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let records = [
        RecordedCase::new("web", "hybrid").record(),
        RecordedCase {
            ending: Ending::Lost,
            ..RecordedCase::new("cache", "hybrid")
        }
        .record(),
    ];
    let mut feeds: Vec<_> = records
        .iter()
        .map(|recorded| Feed::new(&server, recorded, Side::Source))
        .collect();
    open(&shown, &server, &feeds.iter().collect::<Vec<_>>());
    assert_eq!(shown.browser.text("#connection").unwrap(), "Connected");
    for feed in &mut feeds {
        feed.send_until(|state| state.at_ms == 500);
    }
    let headings = "[...document.querySelectorAll('nav h2')].map(e => e.textContent).join()";
    shown.wait(
        "two migrations",
        &format!("{headings} === 'In progress (2),Ended (0)'"),
    );

    server.refuse(true);
    shown.wait(
        "the loss",
        "document.querySelector('#connection').className === 'off'",
    );
    let text = shown.browser.text("#connection").unwrap();
    assert!(text.starts_with("Connection lost"), "{text}");
    assert_eq!(
        shown.browser.text("article h2").unwrap(),
        "web",
        "what is known stays"
    );
    shown.screenshot("live-connection-lost");
    server.begin_with(feeds.iter().map(Feed::first).collect());
    server.refuse(false);
    shown.wait(
        "the connection",
        "document.querySelector('#connection').className === 'on'",
    );
    shown.wait(
        "two migrations",
        &format!("{headings} === 'In progress (2),Ended (0)'"),
    );

    // One engine is killed, the other one reports that the guest is lost.
    let text = "the engine (process 4711) was killed";
    server.send(&event(
        "lost",
        &json!({ "name": feeds[0].name, "text": text }),
    ));
    feeds[1].send_until(|_| false);
    feeds[1].end();
    shown.wait(
        "the end",
        &format!("{headings} === 'In progress (0),Ended (2)'"),
    );
    assert_eq!(
        shown.browser.text(".phase").unwrap(),
        "? Engine not reached"
    );
    assert!(
        shown
            .browser
            .text(".summary")
            .unwrap()
            .contains("The engine (process 4711) was killed")
    );
    shown
        .browser
        .click("nav li:not(:has([aria-current])) a")
        .unwrap();
    shown.wait(
        "the other",
        "document.querySelector('.phase').textContent === '✕ Guest lost'",
    );
    let summary = shown.browser.text(".summary").unwrap();
    let next = "Next: end the source's QEMU, and boot the guest again from its disks";
    assert!(summary.contains(next), "{summary}");
    shown.screenshot("live-guest-lost");

    for feed in &feeds {
        server.send(&event("gone", &json!({ "name": feed.name })));
    }
    shown.wait("no migration", "!document.querySelector('#empty').hidden");
    assert_eq!(
        shown.evaluate("document.querySelector('article').checkVisibility()"),
        false
    );
    assert_eq!(shown.browser.csp_violations().unwrap(), []);
    assert_eq!(shown.browser.foreign_requests().unwrap(), []);
}

/// Text of a guest, a peer or an engine is never markup.
#[test]
fn text_of_recordings_is_shown_as_text() {
    const HOSTILE: &str = "<img src=x onerror=alert(1)><b>\"'&</script>";
    let server = EventServer::start();
    let shown = ShownPage::start();
    let mut recorded = RecordedCase::new("web", "hybrid").record();
    for migration in [&mut recorded.source, &mut recorded.destination] {
        for text in [
            &mut migration.guest,
            &mut migration.host,
            &mut migration.peer,
        ] {
            HOSTILE.clone_into(text);
        }
        HOSTILE.clone_into(&mut migration.memory.blocks[0].id);
        HOSTILE.clone_into(&mut migration.mode);
    }
    HOSTILE.clone_into(&mut recorded.source_end.message);
    recorded.source_end.next = Some(HOSTILE.to_owned());
    for (state, _) in &mut recorded.states {
        for step in &mut state.switchover {
            HOSTILE.clone_into(&mut step.step);
        }
        HOSTILE.clone_into(&mut state.stage);
    }
    let mut feed = Feed::new(&server, &recorded, Side::Source);
    open(&shown, &server, &[&feed]);
    feed.send_until(|_| false);
    feed.end();
    shown.wait(
        "the end",
        "document.querySelector('.phase').textContent.includes('Moved')",
    );
    shown.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)");
    assert_eq!(
        shown.evaluate("document.querySelectorAll('img, b').length"),
        0
    );
    assert_eq!(shown.browser.text("article h2").unwrap(), HOSTILE);
    shown.assert_clean();

    let report = hikkoshi_dashboard::report(&[feed.recording().clone()]);
    server.add_page(
        "/report/x.html",
        report,
        hikkoshi_dashboard::report_policy(),
    );
    shown.open(&format!("{}report/x.html", server.url));
    shown.wait("the views", "document.querySelector('article')");
    assert_eq!(
        shown.evaluate("document.querySelectorAll('img, b').length"),
        0
    );
    assert_eq!(shown.browser.text("article h2").unwrap(), HOSTILE);
    shown.assert_clean();
}

/// The time that the page's main thread takes for one update: a guest of 1 TiB, ten times a second,
/// with all tables open and as many samples as a recording can have.
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
        ..RecordedCase::new("large", "hybrid")
    };
    let recorded = case.record();
    let mut source = Feed::new(&server, &recorded, Side::Source);
    let mut destination = Feed::new(&server, &recorded, Side::Destination);
    let line = source.first().len();
    let postcopy = recorded
        .states
        .iter()
        .position(|(state, _)| state.missing_pages.is_some());
    let begin = postcopy.unwrap() - 60;
    for feed in [&mut source, &mut destination] {
        for state in recorded.states_of(feed.side).take(begin) {
            feed.recorder.add(state.clone());
        }
        feed.sent = begin;
    }
    open(&shown, &server, &[&source, &destination]);
    assert!(line < source.first().len());
    shown.evaluate(MEASURE);
    let states = 120;
    for (from_source, from_destination) in recorded.states.iter().skip(begin).take(states) {
        for (feed, state) in [(&source, from_source), (&destination, from_destination)] {
            server.send(&status(&feed.name, &Record::State(Box::new(state.clone()))));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let result = shown.evaluate("measured()");
    println!(
        "{} samples, {states} states of each side in 12 s",
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
