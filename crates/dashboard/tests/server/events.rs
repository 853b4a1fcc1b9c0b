//! `/events`: what readers get, and in which order.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hikkoshi_account::{Map, Side};
use hikkoshi_dashboard::Limits;
use hikkoshi_status::{
    EVACUATION_VERSION, EvacuatedGuest, Evacuation, EvacuationStage, HOST_VERSION, HostFacts,
    HostStatus, ReachedBy, Recording, StatusRecord,
};
use serde_json::{Value, json};

use crate::client::Client;
use crate::engine::Engine;
use crate::examples::{end, migration, state};
use crate::running_server::RunningServer;

/// Waits until the server follows the engine.
fn wait_until_known(server: &RunningServer, engine: &Engine) {
    let path = format!("/api/migrations/{}", engine.name);
    server.get_until(&path, |response| response.status == 200);
}

fn recording(server: &RunningServer, name: &str) -> Recording {
    serde_json::from_str(&server.get(&format!("/api/migrations/{name}")).body).unwrap()
}

/// What an event has of the recording of an ended migration.
fn short(mut recording: Recording) -> Recording {
    recording.samples.clear();
    recording.frames.clear();
    recording.state.as_mut().unwrap().map = Map::default();
    recording
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
    let StatusRecord::Recording(begin) = record else {
        panic!("{record:?}");
    };
    assert_eq!((whose, &begin.migration), (name.clone(), &migration));

    engine.state(first.clone());
    let state_of = |record| (name.clone(), StatusRecord::State(Box::new(record)));
    assert_eq!(early.record(), state_of(first.clone()));
    // One that comes later gets the same in its recording.
    let mut late = Client::events(server.address);
    let (_, StatusRecord::Recording(later)) = late.record() else {
        panic!("a recording comes first");
    };
    assert_eq!(later.state, Some(first));
    // The rest can be fetched.
    assert_eq!((later.samples.len(), later.frames.len()), (0, 0));
    let whole = recording(&server, &name);
    assert_eq!((whole.samples.len(), whole.frames.len()), (1, 1));

    let second = state(&migration, 200);
    engine.state(second.clone());
    engine.notice("a notice");
    let recorded = engine.end(end(0, "moved"));
    let file = server.folder.path().join(format!("{name}.json"));
    for reader in [&mut early, &mut late] {
        assert_eq!(reader.record(), state_of(second.clone()));
        let (_, StatusRecord::Notice(notice)) = reader.record() else {
            panic!("a notice");
        };
        assert_eq!(notice.text, "a notice");
        // The end from the socket, unless the file was read before. Then what the file has.
        let (_, mut record) = reader.record();
        if let StatusRecord::End(ended) = &record {
            assert_eq!(Some(ended), recorded.end.as_ref());
            record = reader.record().1;
        }
        assert_eq!(
            record,
            StatusRecord::Recording(Box::new(short(recorded.clone())))
        );
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
    let (_, StatusRecord::Recording(recording)) = late.record() else {
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
fn an_evacuation_is_an_event_and_can_be_fetched() {
    let server = RunningServer::start();
    assert_eq!(server.get("/api/evacuation").body, "null");
    let mut early = Client::events(server.address);
    let stays = EvacuationStage::Stays {
        message: "it is not admitted".to_owned(),
    };
    let guest = EvacuatedGuest::new(ReachedBy::Qmp("/q".into()), stays);
    let evacuation = Evacuation {
        version: EVACUATION_VERSION,
        started_unix_ms: Some(1000),
        ended_unix_ms: None,
        plan: None,
        guests: [("db".to_owned(), guest)].into(),
    };
    let folder = server.folder.evacuation();
    fs::create_dir_all(&folder).unwrap();
    let text = serde_json::to_vec(&evacuation).unwrap();
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), Evacuation::journal_in(&folder)).unwrap();
    let (kind, data) = early.event();
    assert_eq!(kind, "evacuation");
    let sent: Evacuation = serde_json::from_value(data["evacuation"].clone()).unwrap();
    assert_eq!(sent, evacuation);
    // One that comes later gets it, too.
    let (kind, later) = Client::events(server.address).event();
    assert_eq!((kind.as_str(), later), ("evacuation", data));
    let fetched = server.get("/api/evacuation").body;
    assert_eq!(
        serde_json::from_str::<Evacuation>(&fetched).unwrap(),
        evacuation
    );
    // The names of its files are those of no migrations.
    assert_eq!(server.get("/api/migrations").body, "[]");
    fs::remove_file(Evacuation::journal_in(&folder)).unwrap();
    assert_eq!(
        early.event(),
        ("evacuation".to_owned(), serde_json::json!({}))
    );
}

#[test]
fn other_hosts_are_events_and_can_be_fetched() {
    let (mut asking, hosts) = UnixStream::pair().unwrap();
    let server = RunningServer::with_hosts(hosts);
    let mut early = Client::events(server.address);
    let status = HostStatus {
        version: HOST_VERSION,
        host: HostFacts::read("0.1.0").unwrap(),
        guests: Vec::new(),
        other_guests: 2,
        limits: None,
        migrations: Vec::new(),
        problems: Vec::new(),
    };
    let mut say = |status: Option<&HostStatus>, error: Option<&str>, migrations: &[Value]| {
        let host = json!({ "version": 1, "asked": "vmhost2", "status": status, "error": error,
            "migrations": migrations.len() });
        for line in [&host].into_iter().chain(migrations) {
            writeln!(asking, "{line}").unwrap();
        }
    };
    let migration = json!({ "name": "source-1-ff" });
    say(Some(&status), None, std::slice::from_ref(&migration));
    let (kind, data) = early.event();
    assert_eq!(kind, "host");
    let with_migrations = HostStatus {
        migrations: vec![migration],
        ..status
    };
    let expected = json!({ "asked": "vmhost2", "status": with_migrations, "error": null });
    assert_eq!(data["host"], expected);
    // One that comes later gets it, too.
    let mut late = Client::events(server.address);
    assert_eq!(late.event(), ("host".to_owned(), data));
    let fetched = server.get("/api/hosts").body;
    let fetched: Value = serde_json::from_str(&fetched).unwrap();
    assert_eq!(fetched, json!([expected]));
    say(None, Some("no answer"), &[]);
    assert_eq!(early.event().1["host"]["error"], "no answer");
    drop(asking);
    let (_, data) = early.event();
    let why = data["host"]["error"].as_str().unwrap();
    assert!(why.contains("has ended"), "{why}");
    // The server does not depend on it.
    assert_eq!(server.get("/api/migrations").body, "[]");
}

/// The file of a killed engine stays when its socket is gone, and is read by another dashboard.
#[test]
fn a_killed_engine_is_known_to_a_dashboard_that_begins_later() {
    let server = RunningServer::start();
    let first = migration(Side::Source, 1, 16);
    let engine = Engine::start(&server.folder, first.clone());
    let name = engine.name.clone();
    engine.state(state(&first, 100));
    engine.store();
    engine.kill();
    let server = server.restart();
    let lost =
        "hikkoshi_migration_engine_lost{id=\"00000001000000000000000000000000\",side=\"source\"} 1";
    server.get_until("/metrics", |metrics| metrics.body.contains(lost));
    // The next engine removes the socket.
    let other = Engine::start(&server.folder, migration(Side::Source, 2, 16));
    wait_until_known(&server, &other);
    assert!(!server.folder.path().join(format!("{name}.sock")).exists());
    let mut reader = Client::events(server.address);
    let (mut kinds, mut gone) = (Vec::new(), false);
    loop {
        let (kind, data) = reader.any_event();
        if kind == "all-sent" {
            break;
        }
        gone |= kind == "gone";
        if data["name"] == *name {
            kinds.push(kind);
        }
    }
    assert_eq!((kinds, gone), (vec!["status".into(), "lost".into()], false));
    assert_eq!(recording(&server, &name).state, Some(state(&first, 100)));
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains(lost), "{metrics}");
    // It was killed before this dashboard began.
    let counted = "hikkoshi_migrations_ended_total{side=\"source\",reason=\"engine_lost\"}";
    assert!(metrics.contains(&format!("{counted} 0")), "{metrics}");
    other.kill();
    let one = format!("{counted} 1");
    server.get_until("/metrics", |metrics| metrics.body.contains(&one));
}

/// Only what ends while the dashboard runs is counted.
#[test]
fn ends_before_the_dashboard_began_are_not_counted() {
    let server = RunningServer::start();
    let start = |server: &RunningServer, number| {
        Engine::start(&server.folder, migration(Side::Source, number, 4))
    };
    let counted = |count: u8| {
        format!("hikkoshi_migrations_ended_total{{side=\"source\",reason=\"moved\"}} {count}\n")
    };
    let ended = |count: u8| format!("hikkoshi_migrations{{state=\"ended\"}} {count}\n");
    let engine = start(&server, 1);
    wait_until_known(&server, &engine);
    engine.end(end(0, "moved"));
    server.get_until("/metrics", |metrics| metrics.body.contains(&counted(1)));
    let server = server.restart();
    server.get_until("/metrics", |metrics| metrics.body.contains(&ended(1)));
    assert!(server.get("/metrics").body.contains(&counted(0)));
    // Also an engine that ends before it was seen.
    start(&server, 2).end(end(0, "moved"));
    server.get_until("/metrics", |metrics| metrics.body.contains(&ended(2)));
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains(&counted(1)), "{metrics}");
}

/// The records of an engine that resumes a migration are joined to those of the one before, for a
/// dashboard that saw both, and for one that begins later.
#[test]
fn a_resumed_migration_has_what_both_engines_recorded() {
    let server = RunningServer::start();
    let first = migration(Side::Destination, 1, 16);
    let engine = Engine::start(&server.folder, first.clone());
    wait_until_known(&server, &engine);
    engine.state(state(&first, 100));
    engine.store();
    engine.kill();
    let mut second = first.clone();
    second.pid += 500;
    second.resumed = true;
    second.started_unix_ms += 10_000;
    let engine = Engine::start(&server.folder, second.clone());
    wait_until_known(&server, &engine);
    let mut reader = Client::events(server.address);
    engine.state(state(&second, 200));
    let joined = loop {
        match reader.event() {
            (kind, data) if kind == "status" && data["name"] == *engine.name => {
                match serde_json::from_value(data["record"].clone()).unwrap() {
                    StatusRecord::State(state) => break *state,
                    _ => continue,
                }
            }
            _ => continue,
        }
    };
    assert_eq!((joined.at_ms, joined.pages.urgent), (10_200, 2006));
    // The map is sent, and is that of both.
    let own = state(&second, 200).map.by_request;
    let doubled: Vec<_> = own.iter().map(|pages| 2 * pages).collect();
    assert_eq!(joined.map.by_request, doubled);
    engine.store();
    let name = engine.name.clone();
    let check = |server: &RunningServer| {
        let recording = recording(server, &name);
        assert_eq!(recording.engines.len(), 2);
        assert_eq!(recording.state.as_ref(), Some(&joined));
        let times: Vec<_> = recording.samples.iter().map(|it| it.at_ms).collect();
        assert_eq!(times, [100, 10_200]);
        let report = server.get(&format!("/report/{name}.html")).body;
        assert!(report.contains("the engine (process 1001) was killed"));
        let metrics = server.get("/metrics").body;
        let urgent = "side=\"destination\",kind=\"urgent\"} 2006\n";
        assert!(metrics.contains(urgent), "{metrics}");
    };
    check(&server);
    let server = server.restart();
    let path = format!("/api/migrations/{name}");
    server.get_until(&path, |response| response.status == 200);
    check(&server);
    // The end is joined, too.
    engine.end(end(0, "moved"));
    let ended = |response: &crate::client::Response| response.body.contains("\"exit_status\":0");
    server.get_until(&path, ended);
    let recording = recording(&server, &name);
    assert_eq!(recording.end.unwrap().at_ms, 15_000);
    assert_eq!(recording.engines.len(), 2);
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
        let list = server.get("/api/migrations").body;
        assert!(
            list.contains(&format!("{{\"name\":\"{name}\",\"migration\":null")),
            "{list}"
        );
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
        let (_, StatusRecord::State(state)) = fast.record() else {
            panic!("a state");
        };
        assert_eq!(state.at_ms, number * 100);
    }
    engine.notice("the last");
    assert!(matches!(fast.record().1, StatusRecord::Notice(_)));
    let (mut got, mut last) = (0, 0);
    assert!(matches!(slow.record().1, StatusRecord::Recording(_)));
    loop {
        match slow.record().1 {
            StatusRecord::State(state) => {
                got += 1;
                assert!(state.at_ms > last);
                last = state.at_ms;
            }
            StatusRecord::Notice(notice) => break assert_eq!(notice.text, "the last"),
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
    assert_eq!(reader.any_event().0, "all-sent");
    for _ in 0..3 {
        assert_eq!(reader.line(), ":");
        assert_eq!(reader.line(), "");
    }
}
