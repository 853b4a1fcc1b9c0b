//! Tests the client with a scripted QEMU: lines that both versions really send, and
//! invalid ones.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hikkoshi_engine::CancelFlag;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::migration_status::{self, MigrationStatus};
use super::{Client, ConnectError, MAX_LINE, QmpError, Version};

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian 1:7.2+dfsg-7+deb12u18+b3"}, "capabilities": ["oob"]}}"#;

/// Short enough for a test, long enough for an answer on a busy machine.
const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);

struct Server {
    folder: TempDir,
    thread: JoinHandle<()>,
}

impl Server {
    fn path(&self) -> PathBuf {
        self.folder.path().join("qmp")
    }

    fn end(self) {
        self.thread.join().unwrap();
    }
}

/// A server that runs `script` on its first connection.
fn server(script: impl FnOnce(Session) + Send + 'static) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("qmp")).unwrap();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        script(Session { stream, reader });
    });
    Server { folder, thread }
}

/// A server that first sends this line.
fn server_that_sends(line: &'static str) -> Server {
    server(move |mut session| {
        session.send(line);
        session.wait_end();
    })
}

struct Session {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Session {
    fn send(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{line}\r\n").as_bytes());
    }

    /// The next command's name and id.
    fn receive(&mut self) -> (String, u64) {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let command: Value = serde_json::from_str(&line).unwrap();
        (
            command["execute"].as_str().unwrap().to_owned(),
            command["id"].as_u64().unwrap(),
        )
    }

    fn open(mut self) -> Self {
        self.send(GREETING);
        let (command, id) = self.receive();
        assert_eq!(command, "qmp_capabilities");
        self.answer(id, json!({}));
        self
    }

    fn answer(&mut self, id: u64, value: Value) {
        self.send(&json!({ "return": value, "id": id }).to_string());
    }
}

#[test]
fn events_between_a_command_and_its_answer_are_kept() {
    let server = server(|session| {
        let mut session = session.open();
        let (command, id) = session.receive();
        assert_eq!(command, "migrate");
        // As captured from 7.2, shortened.
        session.send(r#"{"timestamp": {"seconds": 1763755200, "microseconds": 1}, "event": "MIGRATION", "data": {"status": "setup"}}"#);
        session.answer(id, json!({}));
        session.send(r#"{"timestamp": {"seconds": 1763755200, "microseconds": 2}, "event": "MIGRATION_PASS", "data": {"pass": 1}}"#);
        session
            .send(r#"{"timestamp": {"seconds": 1763755200, "microseconds": 3}, "event": "STOP"}"#);
        let (_, id) = session.receive();
        session.answer(id, json!({ "status": "active" }));
        session.receive();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    assert_eq!(client.version(), Version::new(7, 2, 22));
    assert_eq!(client.peer(), Some(std::process::id()));
    assert!(!client.peer_has_ended());
    assert_eq!(client.execute("migrate", json!({})).unwrap(), json!({}));
    let answer = client.execute("query-migrate", json!({})).unwrap();
    assert_eq!(answer["status"], "active");
    let mut names = Vec::new();
    let stop = client
        .wait_event("a test", Instant::now() + LONG, |event| {
            names.push(event.name.clone());
            (event.name == "STOP").then(|| event.data.clone())
        })
        .unwrap();
    assert_eq!(stop, Some(Value::Null));
    assert_eq!(names, ["MIGRATION", "MIGRATION_PASS", "STOP"]);
    client.execute_within("quit", json!({}), SHORT).unwrap_err();
    drop(client);
    server.end();
}

/// The status may come from a query. Events that came before its answer are seen all the same.
#[test]
fn events_before_a_final_status_are_seen() {
    let server = server(|session| {
        let mut session = session.open();
        let (command, id) = session.receive();
        assert_eq!(command, "query-migrate");
        session.send(
            r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESUME", "data": {}}"#,
        );
        session.answer(id, json!({"status": "completed"}));
        session.wait_end();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let mut seen = Vec::new();
    let status = migration_status::wait_status(
        &mut client,
        "the device state to be loaded",
        LONG,
        MigrationStatus::is_over,
        |event| seen.push(event.name.clone()),
    );
    assert_eq!(status.unwrap(), Some(MigrationStatus::Completed));
    assert_eq!(seen, ["RESUME"]);
    drop(client);
    server.end();
}

#[test]
fn a_late_answer_is_not_mistaken_for_the_next_one() {
    let server = server(|session| {
        let mut session = session.open();
        let (_, slow) = session.receive();
        let (_, quick) = session.receive();
        session.answer(slow, json!("late"));
        session.answer(quick, json!("mine"));
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let error = client.execute_within("slow", json!({}), SHORT).unwrap_err();
    assert!(matches!(error, QmpError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("slow"), "{error}");
    assert_eq!(client.execute("quick", json!({})).unwrap(), json!("mine"));
    server.end();
}

#[test]
fn a_refusal_contains_qemus_message() {
    let server = server(|session| {
        let mut session = session.open();
        let (_, id) = session.receive();
        session.send(&format!(
            r#"{{"id": {id}, "error": {{"class": "GenericError", "desc": "There's a migration process in progress"}}}}"#
        ));
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let error = client
        .execute("migrate-set-capabilities", json!({}))
        .unwrap_err();
    assert!(error.is_refusal());
    assert_eq!(
        error.to_string(),
        "QEMU refused the command migrate-set-capabilities: There's a migration process in progress"
    );
    server.end();
}

#[test]
fn a_closed_connection_is_an_error_of_its_own() {
    let server = server(|session| {
        let mut session = session.open();
        session.receive();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let error = client.execute("cont", json!({})).unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert!(error.to_string().contains("closed"), "{error}");
    server.end();
}

#[test]
fn an_unexpected_answer_is_described() {
    for garbage in ["\u{0}\u{1}binary", "[]", r#"{"return": {}}"#] {
        let server = server(move |session| {
            let mut session = session.open();
            session.receive();
            session.send(garbage);
            session.wait_end();
        });
        let mut client = Client::connect(&server.path(), LONG).unwrap();
        let error = client.execute("query-status", json!({})).unwrap_err();
        assert!(matches!(error, QmpError::Unexpected { .. }), "{error}");
        assert!(error.to_string().contains("query-status"), "{error}");
        drop(client);
        server.end();
    }
}

impl Session {
    fn wait_end(&mut self) {
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut self.reader, &mut rest);
    }
}

#[test]
fn a_line_without_end_does_not_fill_memory() {
    let server = server(|session| {
        let mut session = session.open();
        session.receive();
        let piece = vec![b'a'; 1 << 20];
        let written = (0..MAX_LINE / piece.len() + 8)
            .take_while(|_| session.stream.write_all(&piece).is_ok())
            .count();
        assert!(written >= MAX_LINE / piece.len());
        session.wait_end();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let error = client.execute_within("info", json!({}), LONG).unwrap_err();
    assert!(error.to_string().contains("a line of more than"), "{error}");
    drop(client);
    server.end();
}

#[test]
fn too_many_events_are_dropped_oldest_first() {
    let server = server(|session| {
        let mut session = session.open();
        let (_, id) = session.receive();
        for number in 0..3000 {
            session.send(&json!({ "event": "E", "data": number }).to_string());
        }
        session.answer(id, json!({}));
        session.wait_end();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    client.execute("x", json!({})).unwrap();
    let first = client
        .wait_event("a test", Instant::now(), |event| event.data.as_u64())
        .unwrap();
    assert_eq!(first, Some(3000 - 1024));
    drop(client);
    server.end();
}

#[test]
fn a_socket_with_another_client_is_an_error_of_its_own() {
    // A listener that never answers, like a QEMU that has a client: with space in
    // the queue, and with a full queue.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        let error = Client::connect(&path, SHORT).unwrap_err();
        assert!(
            matches!(error, ConnectError::NoGreeting { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("another program"), "{error}");
        // Fill the queue for the second round.
        held.extend((0..200).map_while(|_| {
            let deadline = Instant::now();
            super::connection::connect(&path, deadline).ok()
        }));
    }
}

/// Such as a serial port.
#[test]
fn a_socket_that_accepts_and_is_silent_is_no_qmp_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serial");
    let listener = UnixListener::bind(&path).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap());
    let error = Client::connect(&path, SHORT).unwrap_err().to_string();
    drop(accepting.join().unwrap());
    assert!(error.contains("probably another socket of QEMU"), "{error}");
    assert!(!error.contains("another program"), "{error}");
}

/// QEMU 7.2 does this if the previous session has just ended.
#[test]
fn an_event_before_the_greeting_belongs_to_the_previous_session() {
    let server = server(|mut session| {
        session.send(
            r#"{"timestamp": {"seconds": 1763755200, "microseconds": 1}, "event": "RESUME"}"#,
        );
        let mut session = session.open();
        session
            .send(r#"{"timestamp": {"seconds": 1763755200, "microseconds": 2}, "event": "STOP"}"#);
        session.wait_end();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let first = client
        .wait_event("a test", Instant::now() + LONG, |event| {
            Some(event.name.clone())
        })
        .unwrap();
    assert_eq!(first.as_deref(), Some("STOP"));
    drop(client);
    server.end();

    let server = server_that_sends(r#"{"return": {}, "id": 7}"#);
    let error = Client::connect(&server.path(), LONG).unwrap_err();
    assert!(
        error.to_string().contains("an answer came before"),
        "{error}"
    );
    server.end();
}

#[test]
fn other_sockets_and_missing_sockets_are_different_errors() {
    let monitor = server(|mut session| {
        session.send("QEMU 7.2.22 monitor - type 'help' for more information");
        session.wait_end();
    });
    let error = Client::connect(&monitor.path(), LONG).unwrap_err();
    assert!(matches!(error, ConnectError::NotQmp { .. }), "{error}");
    assert!(error.to_string().contains("human monitor"), "{error}");
    monitor.end();

    let folder = tempfile::tempdir().unwrap();
    let error = Client::connect(&folder.path().join("none"), SHORT).unwrap_err();
    assert!(error.to_string().contains("is QEMU running"), "{error}");
    let long = folder.path().join("x".repeat(200));
    let error = Client::connect(&long, SHORT).unwrap_err();
    assert!(matches!(error, ConnectError::Connect { .. }), "{error}");
}

#[test]
fn waiting_can_be_cancelled() {
    let server = server(|session| {
        let mut session = session.open();
        session.receive();
        session.wait_end();
    });
    let mut client = Client::connect(&server.path(), LONG).unwrap();
    let cancel = CancelFlag::new();
    client.set_cancel(Some(cancel.clone()));
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        cancel.cancel();
    });
    let error = client.execute_within("slow", json!({}), LONG).unwrap_err();
    assert!(matches!(error, QmpError::Cancelled { .. }), "{error}");
    canceller.join().unwrap();
    drop(client);
    server.end();
}

const LISTEN: &str = "HIKKOSHI_TEST_LISTEN";

/// The other process: a copy of this program that greets one client and ends.
#[test]
fn a_listener_that_ends() {
    let Some(path) = std::env::var_os(LISTEN) else {
        return;
    };
    let listener = UnixListener::bind(path).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    let mut session = Session { stream, reader };
    session.send(GREETING);
    let (_, id) = session.receive();
    session.answer(id, json!({}));
}

/// Its number can then belong to another process, while one of its children answers
/// on the same socket.
#[test]
fn the_end_of_the_peer_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "qmp::tests::a_listener_that_ends"])
        .env(LISTEN, &path)
        .spawn()
        .unwrap();
    let deadline = Instant::now() + LONG;
    let client = loop {
        match Client::connect(&path, LONG) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(client.peer(), Some(child.id()));
    child.wait().unwrap();
    assert!(client.peer_has_ended());
}
