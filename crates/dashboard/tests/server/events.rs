//! `/events`: what readers get, and in which order.

use std::fs;
use std::time::Duration;

use hikkoshi_dashboard::Limits;
use hikkoshi_status::{Record, Side};

use crate::client::Client;
use crate::engine::Engine;
use crate::examples::{end, migration, state};
use crate::running_server::RunningServer;

/// Waits until the server follows the engine.
fn wait_until_known(server: &RunningServer, engine: &Engine) {
    let path = format!("/api/migrations/{}", engine.name);
    server.get_until(&path, |response| response.status == 200);
}

#[test]
fn a_reader_gets_the_recording_then_each_change_and_the_end() {
    let server = RunningServer::start();
    // The folder need not exist when the server begins.
    let migration = migration(Side::Destination, 1, 16);
    let first = state(&migration, 100);
    let engine = Engine::start(&server.folder, migration.clone());
    let name = engine.name.clone();
    let mut early = Client::events(server.address);
    let (whose, record) = early.record();
    let Record::Recording(begin) = record else {
        panic!("{record:?}");
    };
    assert_eq!((whose, &begin.migration), (name.clone(), &migration));

    engine.state(first.clone());
    let state_of = |record| (name.clone(), Record::State(Box::new(record)));
    assert_eq!(early.record(), state_of(first.clone()));
    // One that comes later gets the same in its recording.
    let mut late = Client::events(server.address);
    let (_, Record::Recording(later)) = late.record() else {
        panic!("a recording comes first");
    };
    assert_eq!(later.state, Some(first));
    assert_eq!((later.samples.len(), later.frames.len()), (1, 1));

    let second = state(&migration, 200);
    engine.state(second.clone());
    engine.notice("a notice");
    let recorded = engine.end(end(0, "moved"));
    let file = server.folder.path().join(format!("{name}.json"));
    for reader in [&mut early, &mut late] {
        assert_eq!(reader.record(), state_of(second.clone()));
        let (_, Record::Notice(notice)) = reader.record() else {
            panic!("a notice");
        };
        assert_eq!(notice.text, "a notice");
        // The end from the socket, unless the file was read before. Then what the file has.
        let (_, mut record) = reader.record();
        if let Record::End(ended) = &record {
            assert_eq!(Some(ended), recorded.end.as_ref());
            record = reader.record().1;
        }
        assert_eq!(record, Record::Recording(Box::new(recorded.clone())));
    }
    let text = server.get(&format!("/api/migrations/{name}")).body;
    assert_eq!(text, serde_json::to_string(&recorded).unwrap());

    fs::remove_file(file).unwrap();
    for reader in [&mut early, &mut late] {
        let gone = serde_json::json!({ "name": name });
        assert_eq!(reader.event(), ("gone".to_owned(), gone));
    }
    assert_eq!(server.get("/api/migrations").body, "[]");
}

#[test]
fn a_killed_engine_is_lost_and_its_recording_stays() {
    let server = RunningServer::start();
    let migration = migration(Side::Source, 1, 16);
    let engine = Engine::start(&server.folder, migration.clone());
    wait_until_known(&server, &engine);
    let name = engine.name.clone();
    let mut reader = Client::events(server.address);
    reader.record();
    engine.state(state(&migration, 100));
    reader.record();
    engine.kill();
    let (kind, data) = reader.event();
    assert_eq!(kind, "lost");
    assert_eq!(data["name"], *name);
    let text = data["text"].as_str().unwrap();
    assert!(text.contains("its engine was killed"), "{text}");
    // One that comes later gets both.
    let mut late = Client::events(server.address);
    let (_, Record::Recording(recording)) = late.record() else {
        panic!("a recording");
    };
    assert_eq!(recording.state.map(|state| state.at_ms), Some(100));
    assert_eq!(late.event().0, "lost");
    let list = server.get("/api/migrations").body;
    assert!(list.contains("its engine was killed"), "{list}");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("hikkoshi_migrations{state=\"lost\"} 1"));
}

#[test]
fn a_file_that_is_not_a_recording_is_lost() {
    let server = RunningServer::start();
    server.folder.create().unwrap();
    let mut reader = Client::events(server.address);
    for (name, content) in [("bad", "{"), ("other", "{\"version\":99}")] {
        fs::write(server.folder.path().join(format!("{name}.json")), content).unwrap();
        let (kind, data) = reader.event();
        assert_eq!((&*kind, data["name"].as_str()), ("lost", Some(name)));
        assert_eq!(server.get(&format!("/api/migrations/{name}")).status, 404);
        assert_eq!(server.get(&format!("/report/{name}.html")).status, 404);
    }
}

#[test]
fn both_sides_and_several_migrations_are_followed() {
    let server = RunningServer::start();
    let engines: Vec<_> = (1..=4)
        .flat_map(|number| [Side::Source, Side::Destination].map(|side| (side, number)))
        .map(|(side, number)| {
            let mut migration = migration(side, number, 4);
            migration.pid += if side == Side::Source { 100 } else { 0 };
            Engine::start(&server.folder, migration)
        })
        .collect();
    engines
        .iter()
        .for_each(|engine| wait_until_known(&server, engine));
    let mut reader = Client::events(server.address);
    let mut names: Vec<_> = engines.iter().map(|_| reader.record().0).collect();
    names.sort();
    let mut expected: Vec<_> = engines.iter().map(|engine| engine.name.clone()).collect();
    expected.sort();
    assert_eq!(names, expected);
    let list: serde_json::Value =
        serde_json::from_str(&server.get("/api/migrations").body).unwrap();
    let listed: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str())
        .collect();
    let expected: Vec<_> = expected.iter().map(|name| Some(name.as_str())).collect();
    assert_eq!(listed, expected);
}

#[test]
fn a_reader_that_does_not_read_misses_states_and_delays_no_other() {
    let server = RunningServer::start();
    let migration = migration(Side::Source, 1, 1024);
    let engine = Engine::start(&server.folder, migration.clone());
    wait_until_known(&server, &engine);
    let mut fast = Client::events(server.address);
    let mut slow = Client::events(server.address);
    fast.record();
    // More than both sockets hold.
    let states = 600;
    for number in 1..=states {
        engine.state(state(&migration, number * 100));
        let (_, Record::State(state)) = fast.record() else {
            panic!("a state");
        };
        assert_eq!(state.at_ms, number * 100);
    }
    engine.notice("the last");
    assert!(matches!(fast.record().1, Record::Notice(_)));
    let (mut got, mut last) = (0, 0);
    assert!(matches!(slow.record().1, Record::Recording(_)));
    loop {
        match slow.record().1 {
            Record::State(state) => {
                got += 1;
                assert!(state.at_ms > last);
                last = state.at_ms;
            }
            Record::Notice(notice) => break assert_eq!(notice.text, "the last"),
            other => panic!("{other:?}"),
        }
    }
    assert!(got < states, "{got}");
    assert_eq!(last, states * 100, "the newest state is never left out");
}

#[test]
fn a_silent_stream_is_kept_alive_by_comments() {
    let server = RunningServer::with(Limits {
        keep_alive: Duration::from_millis(20),
        ..Limits::default()
    });
    let mut reader = Client::events(server.address);
    for _ in 0..3 {
        assert_eq!(reader.line(), ":");
        assert_eq!(reader.line(), "");
    }
}
