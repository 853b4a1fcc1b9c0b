//! The live page for its users: keyboard, lost connections, hostile text.

use hikkoshi_account::{Mode, Side};
use hikkoshi_tests::recordings::{Ending, RecordedCase};
use hikkoshi_tests::{ShownPage, count};
use serde_json::json;

use crate::event_server::{ALL_SENT, EventServer, event, short};
use crate::feed::{Feed, open};
use crate::live::assert_samples;

#[test]
fn a_migration_and_a_cell_are_chosen_with_the_keyboard() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let records = [
        RecordedCase::new("web", Mode::Hybrid).record(),
        RecordedCase::new("mail", Mode::Precopy).record(),
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
        spoken.as_str().unwrap().ends_with("Not sent: 2,048"),
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
        RecordedCase::new("web", Mode::Hybrid).record(),
        RecordedCase {
            ending: Ending::Lost,
            ..RecordedCase::new("cache", Mode::Hybrid)
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

    // One is removed while the page is connected, the other one while it is not.
    server.send(&event("gone", &json!({ "name": feeds[0].name })));
    let one = format!("{headings} === 'In progress (0),Ended (1)'");
    shown.wait("one migration", &one);
    server.refuse(true);
    shown.wait(
        "the loss",
        "document.querySelector('#connection').className === 'off'",
    );
    server.begin_with(Vec::new());
    server.has_more(true);
    server.refuse(false);
    shown.wait(
        "the connection",
        "document.querySelector('#connection').className === 'on'",
    );
    // A slow line: what was not sent yet stays.
    assert_eq!(shown.evaluate("hikkoshi.live.recordings.size"), 1);
    server.send(ALL_SENT);
    shown.wait("no migration", "!document.querySelector('#empty').hidden");
    assert_eq!(
        shown.evaluate("document.querySelector('article').checkVisibility()"),
        false
    );
    assert_eq!(shown.browser.csp_violations().unwrap(), []);
    assert_eq!(shown.browser.foreign_requests().unwrap(), []);
}

/// Events have no samples and maps of the past. The page fetches those of the migration that it
/// shows, also while that goes on.
#[test]
fn what_the_events_leave_out_is_fetched() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let records = [
        RecordedCase::new("web", Mode::Hybrid).record(),
        RecordedCase::new("mail", Mode::Precopy).record(),
    ];
    let mut web = Feed::new(&server, &records[0], Side::Source);
    for state in records[0].states_of(Side::Source).take(20) {
        web.recorder.add(state.clone());
        web.sent += 1;
    }
    let mail = records[1].recording(Side::Source);
    server.begin_with(vec![
        short(&web.name, web.recording()),
        short("mail", &mail),
    ]);
    for (name, recording) in [(&*web.name, web.recording()), ("mail", &mail)] {
        let text = serde_json::to_string(recording).unwrap();
        server.add_page(&format!("/api/migrations/{name}"), text, String::new());
    }
    shown.open(&server.url);
    shown.wait("both", "hikkoshi.live.recordings.size === 2");
    let title = "document.querySelector('article h2').textContent";
    shown.wait("the one that runs", &format!("{title} === 'web'"));
    web.send_until(|_| false);
    let get = |name: &str| format!("hikkoshi.live.recordings.get({})", json!(name));
    let web_of_page = get(&web.name);
    shown.wait("its history", &format!("!{web_of_page}.short"));
    shown.wait_for_state(&web.name, web.at_ms());
    assert_samples(&shown, &web);
    let frames = shown.evaluate(&format!("{web_of_page}.data.frames.map(f => f.at_ms)"));
    let expected: Vec<_> = web.recording().frames.iter().map(|f| f.at_ms).collect();
    assert_eq!(frames, json!(expected));
    // The other one is fetched when it is chosen.
    let mail_of_page = get("mail");
    assert_eq!(shown.evaluate(&format!("{mail_of_page}.short")), true);
    shown
        .browser
        .click("nav li:not(:has([aria-current])) a")
        .unwrap();
    shown.wait("the other's history", &format!("!{mail_of_page}.short"));
    let samples = shown.evaluate(&format!("{mail_of_page}.data.samples.length"));
    assert_eq!(samples, json!(mail.samples.len()));
    shown.wait(
        "its rates",
        "document.querySelector('.rates').checkVisibility() && !hikkoshi.live.changed",
    );
    let drawn =
        "hikkoshi.live.sections.views.find(view => view.traffic).traffic.plot.data[0].length";
    assert_eq!(shown.evaluate(drawn), json!(mail.samples.len()));
    shown.assert_clean();
}

/// The moves of an evacuation are below its heading, and so are the guests that have none.
#[test]
fn an_evacuation_is_one_thing() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let mut records = ["web", "other"].map(|name| RecordedCase::new(name, Mode::Hybrid).record());
    for (record, pid) in records.iter_mut().zip(4711..) {
        record.source.pid = pid;
    }
    let feeds: Vec<_> = records
        .iter()
        .map(|recorded| Feed::new(&server, recorded, Side::Source))
        .collect();
    open(&shown, &server, &feeds.iter().collect::<Vec<_>>());
    let guest = |stage: serde_json::Value, pid: Option<u32>| {
        json!({
            "at": { "qmp": "/run/a.qmp" }, "to": "vmhost2:7000", "attempts": 1, "stage": stage,
            "pid": pid,
        })
    };
    let stays = json!({ "stays": { "message": "it has a passed-through card" } });
    let guests = json!({ "web": guest(json!("moving"), Some(4711)), "mail": guest(stays, None) });
    let evacuation = json!({ "version": 1, "started_unix_ms": 1000, "guests": guests });
    let headings = "[...document.querySelectorAll('nav h2')].map(e => e.textContent).join()";
    server.send(&event("evacuation", &json!({ "evacuation": evacuation })));
    shown.wait(
        "the evacuation",
        &format!("{headings} === 'Evacuation (0 of 2),In progress (1),Ended (0)'"),
    );
    let text = shown.browser.text("nav section").unwrap();
    for part in [
        "0 moved, 1 moving, 1 stays",
        "web",
        "mail",
        "stays: it has a passed-through card",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Its move is shown, and says more than the plan.
    assert!(!text.contains("moves to"), "{text}");
    assert!(!text.contains("other"), "{text}");
    shown.screenshot("live-evacuation");
    server.send(&event("evacuation", &json!({})));
    shown.wait(
        "no evacuation",
        &format!("{headings} === 'In progress (2),Ended (0)'"),
    );
    shown.assert_clean();
}

/// Other hosts are below the migrations of this one, each with its own.
#[test]
fn other_hosts_are_listed() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    let recorded = RecordedCase::new("web", Mode::Hybrid).record();
    let feed = Feed::new(&server, &recorded, Side::Source);
    open(&shown, &server, &[&feed]);
    let migration = |guest: &str, state: serde_json::Value| {
        json!({ "running": true, "answers": true, "state": state,
            "migration": { "guest": guest, "side": "destination", "peer": "vmhost1" } })
    };
    let state = json!({ "phase": "postcopy", "done_pages": 250, "total_pages": 1000 });
    let hostile = "<img src=x onerror=alert(1)>";
    let status = json!({
        "host": { "memory": { "available_bytes": 3_u64 << 30, "total_bytes": 8_u64 << 30 },
            "processors": { "load": [0.5, 0, 0], "online": 8 } },
        "guests": [{ "name": "db", "state": "arriving" }], "other_guests": 2,
        "migrations": [migration("db", state), migration(hostile, json!(null))],
    });
    let says = |asked: &str, status: serde_json::Value, error: serde_json::Value| {
        let host = json!({ "asked": asked, "status": status, "error": error });
        server.send(&event("host", &json!({ "host": host })));
    };
    says("vmhost2", status, json!(null));
    says("vmhost3", json!(null), json!("the connection failed"));
    shown.wait(
        "both hosts",
        "document.querySelectorAll('.hosts > li').length === 2",
    );
    let text = shown
        .browser
        .text("nav section[aria-label='Other hosts']")
        .unwrap();
    for part in [
        "Other hosts (2)",
        "3 guests · 3 GiB of 8 GiB free · load 0.50 of 8",
        "arrives (vmhost1) · Post-copy · 25.0 %",
        hostile,
        "no answer: the connection failed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    shown.screenshot("live-hosts");
    // Each answer replaces the one before.
    says("vmhost2", json!(null), json!("it has ended"));
    shown.wait(
        "the new answer",
        "document.querySelectorAll('.hosts .bad').length === 2",
    );
    shown.assert_clean();
}

#[test]
fn entries_that_cannot_be_read_are_named() {
    let server = EventServer::start();
    let shown = ShownPage::start();
    shown.open(&server.url);
    let on = "document.querySelector('#connection').className === 'on'";
    shown.wait("the connection", on);
    shown.wait("no migration", "!document.querySelector('#empty').hidden");
    let text = "the status file source-1-ff.json has version 99, and this hikkoshi reads version 1";
    let lost = event("lost", &json!({ "name": "source-1-ff", "text": text }));
    server.send(&lost);
    shown.wait("the entry", "document.querySelector('.unreadable li')");
    let named = shown.browser.text("nav .unreadable").unwrap();
    assert!(
        named.contains("source-1-ff") && named.contains(text),
        "{named}"
    );
    assert_eq!(
        shown.evaluate("document.querySelector('#empty').hidden"),
        true
    );
    shown.screenshot("live-unreadable");
    // It stays when everything is sent again, as long as it is.
    server.refuse(true);
    shown.wait(
        "the loss",
        "document.querySelector('#connection').className === 'off'",
    );
    server.begin_with(vec![lost]);
    server.refuse(false);
    shown.wait(
        "the connection",
        &format!("{on} && hikkoshi.live.unsent === null"),
    );
    assert_eq!(shown.evaluate("hikkoshi.live.unreadable.size"), 1);
    server.send(&event("gone", &json!({ "name": "source-1-ff" })));
    shown.wait("no entry", "!document.querySelector('.unreadable')");
    shown.assert_clean();
}

/// Text of a guest, a peer or an engine is never markup.
#[test]
fn text_of_recordings_is_shown_as_text() {
    const HOSTILE: &str = "<img src=x onerror=alert(1)><b>\"'&</script>";
    let server = EventServer::start();
    let shown = ShownPage::start();
    let mut recorded = RecordedCase::new("web", Mode::Hybrid).record();
    for migration in [&mut recorded.source, &mut recorded.destination] {
        for text in [
            &mut migration.guest,
            &mut migration.host,
            &mut migration.peer,
        ] {
            HOSTILE.clone_into(text);
        }
        HOSTILE.clone_into(&mut migration.memory.blocks[0].id);
    }
    HOSTILE.clone_into(&mut recorded.source_end.message);
    recorded.source_end.next = Some(HOSTILE.to_owned());
    for (state, _) in &mut recorded.states {
        for step in &mut state.switchover {
            step.step = HOSTILE.into();
        }
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
        hikkoshi_dashboard::served_report_policy(),
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
