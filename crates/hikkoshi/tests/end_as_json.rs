//! With `--progress json`, the last line on standard error is the result.

// Helpers outside the test function: their failure is the message too.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn hikkoshi(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_last_line_says_how_it_ended() {
    for side in [
        &["migrate", "unix:/nowhere/socket"][..],
        &["receive", "--listen", "127.0.0.1:0"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().to_str().unwrap();
        let always = [
            "--qmp",
            "/nowhere/qmp",
            "--progress",
            "json",
            "--journal",
            journal,
        ];
        let ended = hikkoshi(&[side, &always].concat());
        let said = String::from_utf8(ended.stderr).unwrap();
        let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let end = &last["end"];
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert_eq!(end["exit_status"], 1, "{said}");
        assert_eq!(end["reason"], "not_attached", "{said}");
        assert_eq!(end["guest"], "source", "{said}");
        assert!(
            end["message"].as_str().unwrap().contains("/nowhere/qmp"),
            "{said}"
        );
        assert_eq!(end["resume"], Value::Null, "{said}");
    }
}

/// A service manager resumes again after 3, and does not after 2.
#[test]
fn a_failure_before_a_journal_was_looked_for_does_not_end_a_migration() {
    let listen = &["receive", "--listen", "127.0.0.1:0"];
    for (side, resumes) in [
        (&["migrate", "unix:/nowhere/socket"][..], false),
        (listen, false),
        (&["migrate", "--resume"], true),
        (&["receive", "--resume"], true),
    ] {
        let ended = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
            .args(side)
            .args(["--qmp", "/nowhere/qmp", "--progress", "json"])
            .env("HIKKOSHI_LOG", "loud")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        let end = &last["end"];
        let status = if resumes { 3 } else { 2 };
        assert_eq!(ended.status.code(), Some(status), "{said}");
        assert_eq!(end["exit_status"], status, "{said}");
        assert_eq!(end["guest"], "unknown", "{said}");
        assert!(
            end["message"].as_str().unwrap().contains("HIKKOSHI_LOG"),
            "{said}"
        );
    }
}
