//! Text from QEMU and of file names reaches a terminal without escape sequences.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

/// Sets the terminal's title, clears the screen, sets a colour by a C1 control, and forges a line.
const WORDS: &str =
    r"no \u001b]0;mine\u0007\u001b[2J\u009b31m\nhikkoshi: the guest was moved\u202e";

/// A QMP socket with such text in every message.
fn speak(listener: &UnixListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let event = format!(
        r#"{{"timestamp": {{"seconds": 1, "microseconds": 2}}, "event": "{WORDS}", "data": {{"id": "{WORDS}"}}}}"#
    );
    let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}}, "capabilities": []}}"#;
    let _ = writeln!(stream, "{event}\n{greeting}");
    for line in lines.map_while(Result::ok) {
        let command: serde_json::Value = serde_json::from_str(&line).unwrap();
        let id = command["id"].as_u64().unwrap();
        let answer = if command["execute"] == "qmp_capabilities" {
            r#""return": {}"#.to_owned()
        } else {
            format!(r#""error": {{"class": "{WORDS}", "desc": "{WORDS}"}}"#)
        };
        let _ = writeln!(stream, "{event}\n{{{answer}, \"id\": {id}}}");
    }
}

#[test]
fn a_qemu_that_sends_escape_sequences_is_shown_as_text() {
    let folder = tempfile::tempdir().unwrap();
    for progress in ["auto", "json"] {
        // In the name of the socket as well.
        let qmp = folder.path().join(format!("\u{1b}[2J{progress}\u{9b}1m"));
        let listener = UnixListener::bind(&qmp).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| speak(&listener));
            let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
                .args(["migrate", "unix:/nowhere", "--qmp"])
                .arg(&qmp)
                .args(["--progress", progress, "--journal"])
                .arg(folder.path())
                .env("HIKKOSHI_LOG", "trace")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            for said in [output.stdout, output.stderr] {
                let said = String::from_utf8(said).unwrap();
                let odd: Vec<_> = said
                    .chars()
                    .filter(|c| c.is_control() && *c != '\n' || *c == '\u{202e}')
                    .collect();
                assert!(odd.is_empty(), "{odd:?} in {said}");
                assert!(!said.contains("\nhikkoshi: the guest was moved"), "{said}");
            }
        });
    }
}
