//! What clients can use.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use hikkoshi_account::Side;
use hikkoshi_dashboard::Limits;

use crate::client::Client;
use crate::engine::Engine;
use crate::examples::{migration, state};
use crate::running_server::RunningServer;

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_client_that_sends_no_whole_head_is_disconnected() {
    let server = RunningServer::with(Limits {
        head: SHORT,
        ..Limits::default()
    });
    for sent in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\n"] {
        let mut client = Client::connect(server.address);
        client.send(sent.as_bytes());
        client.rest();
    }
    // Also between two requests.
    let mut client = Client::connect(server.address);
    client.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.head().status, 200);
    client.rest();
}

#[test]
fn heads_are_bounded() {
    let server = RunningServer::start();
    let many = "A: b\r\n".repeat(100);
    let long = format!("A: {}\r\n", "x".repeat(100_000));
    for headers in [many, long] {
        let mut client = Client::connect(server.address);
        client.begin("GET", "/", &headers);
        assert_eq!(client.head().status, 431);
    }
}

#[test]
fn a_client_that_accepts_nothing_is_disconnected() {
    let server = RunningServer::with(Limits {
        write: SHORT,
        ..Limits::default()
    });
    let migration = migration(Side::Source, 1, 1024);
    let engine = Engine::start(&server.folder, migration.clone());
    (0..32).for_each(|number| engine.state(state(&migration, number * 100)));
    let path = format!("/api/migrations/{}", engine.name);
    let length = server
        .get_until(&path, |response| response.status == 200)
        .body
        .len();
    let mut client = Client::connect(server.address);
    let requests = 30_000_000 / length;
    for _ in 0..requests {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    }
    // The server is idle again when the connection has ended.
    let open = || {
        let stat = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!(":{:04X} ", server.address.port());
        let established = |line: &&str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            format!("{} ", fields[1]).ends_with(&local) && fields[3] == "01"
        };
        stat.lines().skip(1).filter(established).count()
    };
    while open() > 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    let got = client.rest().map_or(0, |rest| rest.len());
    assert!(got < requests * length, "{got}");
    // Others are served.
    assert_eq!(server.get("/metrics").status, 200);
}

#[test]
fn connections_and_streams_are_bounded() {
    let server = RunningServer::with(Limits {
        connections: 3,
        event_streams: 2,
        ..Limits::default()
    });
    let first = Client::events(server.address);
    let second = Client::events(server.address);
    let refused = server.get("/events");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("close some"), "{}", refused.body);
    let idle = Client::connect(server.address);
    // All are taken: another one waits.
    let mut waiting = Client::connect(server.address);
    waiting.begin("GET", "/metrics", "");
    let stream = waiting.stream.get_mut();
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    drop(first);
    stream.set_read_timeout(None).unwrap();
    assert_eq!(waiting.head().status, 200);
    drop((second, idle));
    drop(waiting);
    // The places of streams are free again, too.
    let refused = |response: &crate::client::Response| response.status == 503;
    let mut again = Client::connect(server.address);
    again.begin("GET", "/events", "");
    assert!(!refused(&again.head()));
}
