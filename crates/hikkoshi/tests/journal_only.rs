//! Giving up a migration needs nothing but its journal, and neither does resuming one that is
//! complete.

// Helpers outside the test function: their failure is the message too.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A kept journal, with these fields instead of its own, of a QEMU process that has exited.
fn journal(folder: &Path, side: &str, fields: &Value) -> PathBuf {
    let kept = format!(
        "{}/tests/journals/v3-{side}-certified.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut journal: Value = serde_json::from_slice(&std::fs::read(kept).unwrap()).unwrap();
    let namespace =
        |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|file| file.ino());
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let place = &mut journal["qemu"]["place"];
    place["qmp"] = "/nowhere/qmp".into();
    // This process was not started when the machine was: that was another process.
    place["pid"] = std::process::id().into();
    place["started"] = 0.into();
    place["view"] = json!({
        "boot": boot.trim_end(),
        "pids": namespace("pid").unwrap(),
        "times": namespace("time").ok(),
    });
    journal["address"] = "192.0.2.1:7000".into();
    let fields = fields.as_object().unwrap().clone();
    journal.as_object_mut().unwrap().extend(fields);
    let path = folder.join(format!("{side}-1-1.json"));
    std::fs::write(&path, journal.to_string()).unwrap();
    path
}

/// The exit status, and standard error.
fn give_up(command: &str, journal: &Path) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
        .args([command, "--give-up", "--other-side-is-lost"])
        .arg(format!("--resume={}", journal.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

/// There are no statistics, but programs get an object nevertheless, and nothing else.
#[test]
fn a_guest_that_has_moved_is_reported_to_programs() {
    let folder = tempfile::tempdir().unwrap();
    let run = |side, command, engine: Value, arguments: &[&str]| {
        let fields = json!({ "engine": engine });
        let path = journal(folder.path(), side, &fields);
        let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
            .args([command, "--json", "-"])
            .arg(format!("--resume={}", path.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(!path.exists(), "nothing is left to resume");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let id = "0".repeat(32);
    let done = json!({ "id": id, "stage": "done", "mode": "hybrid" });
    let what = "the guest is at the destination, with all of its pages";
    let moved = json!({ "moved": what });
    assert_eq!(run("source", "migrate", done.clone(), &[]), moved);
    let quit = json!({ "moved": what, "source_quit": true });
    assert_eq!(run("source", "migrate", done, &["--quit-source"]), quit);
    let complete = json!({
        "id": id, "stage": "complete", "mode": "hybrid", "postcopy": true,
        "running": true, "started": true, "links": 1,
    });
    let given_up = ["--give-up", "--other-side-is-lost"];
    let what = "the guest runs here with all of its pages; its source was not informed";
    let moved = json!({ "moved": what });
    assert_eq!(run("destination", "receive", complete, &given_up), moved);
}

/// No connection is made, so certificates that are gone do not matter.
#[test]
fn certificates_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let gone = json!({ "ca": "/gone/ca", "cert": "/gone/cert", "key": "/gone/key" });
    let id = "0".repeat(32);

    let protected = json!({ "Certified": { "files": gone } });
    let path = journal(
        folder.path(),
        "destination",
        &json!({
            "security": protected,
            "engine": {
                "id": id, "stage": "ready", "mode": "hybrid", "postcopy": true,
                "running": true, "started": false, "links": 1,
            },
        }),
    );
    let (status, said) = give_up("receive", &path);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("never will"), "{said}");
    // Its source may still connect, and is accepted as before.
    let after: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(after["engine"]["stage"], "declined");
    assert_eq!(after["security"], protected);
    assert_eq!(after["address"], "192.0.2.1:7000");

    let path = journal(
        folder.path(),
        "source",
        &json!({
            "security": { "Certified": { "files": gone, "host": "dst.example" } },
            "engine": { "id": id, "stage": "committed", "mode": "hybrid" },
        }),
    );
    let (status, said) = give_up("migrate", &path);
    // The furthest that it can get without a QEMU.
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("the source's QEMU has ended"), "{said}");
}
