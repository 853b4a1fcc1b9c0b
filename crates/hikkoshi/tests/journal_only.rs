//! Giving up a migration needs nothing but its journal, and neither does resuming one that is
//! complete, nor refusing to resume.

// Helpers outside the test function: their failure is the message too.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};

/// A kept journal, with these fields instead of its own, of a QEMU process that has exited.
fn journal(folder: &Path, side: &str, fields: &Value) -> PathBuf {
    let kept = format!(
        "{}/tests/journals/{side}-certified.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut journal: Value = serde_json::from_slice(&std::fs::read(kept).unwrap()).unwrap();
    let namespace =
        |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|file| file.ino());
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let identity = &mut journal["qemu"]["identity"];
    identity["monitor"] = json!({ "socket": "/nowhere/qmp" });
    // This process was not started when the machine was: that was another process.
    identity["pid"] = std::process::id().into();
    identity["start_time"] = 0.into();
    identity["namespaces"] = json!({
        "boot_id": boot.trim_end(),
        "pid_namespace": namespace("pid").unwrap(),
        "time_namespace": namespace("time").ok(),
    });
    journal["address"] = "192.0.2.1:7000".into();
    let history = journal["engine"]["history"].take();
    let fields = fields.as_object().unwrap().clone();
    journal.as_object_mut().unwrap().extend(fields);
    journal["engine"]["history"] = history;
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
    let what = "the guest has moved to the destination, which needs nothing more from here";
    let moved = json!({ "moved": what });
    assert_eq!(run("source", "migrate", done.clone(), &[]), moved);
    let quit = json!({ "moved": what, "source_quit": true });
    assert_eq!(run("source", "migrate", done, &["--quit-source"]), quit);
    let complete = json!({
        "id": id, "stage": "complete", "mode": "hybrid", "postcopy": true,
        "running": true, "started": true, "given_up": false, "links": 1,
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
                "running": true, "started": false, "given_up": false, "links": 1,
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

/// A daemon resumes a migration so: the lock is held all the time.
#[test]
fn a_lock_that_is_standard_input_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let engine = json!({
        "id": "0".repeat(32), "stage": "complete", "mode": "hybrid", "postcopy": true,
        "running": true, "started": true, "given_up": false, "links": 1,
    });
    let path = journal(folder.path(), "destination", &json!({ "engine": engine }));
    let lock = File::create(path.with_extension("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let run = |stdin: Stdio| {
        let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
            .args(["receive", "--give-up", "--other-side-is-lost"])
            .arg(format!("--resume={}", path.display()))
            .stdin(stdin)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let (status, said) = run(Stdio::null());
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("another hikkoshi is working"), "{said}");
    let (status, said) = run(lock.try_clone().unwrap().into());
    assert_eq!(status, Some(0), "{said}");
    assert!(!path.exists(), "nothing is left to resume");
}

/// How a command ended that could not resume: the end that programs get.
fn end(command: &str, arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_hikkoshi"))
        .args([command, "--json", "-", "--progress", "none"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let end: Value = serde_json::from_slice(&output.stdout).unwrap();
    let end = end["error"].clone();
    assert_eq!(
        output.status.code().map(Value::from).unwrap(),
        end["exit_status"],
        "{output:?}"
    );
    end
}

/// Status 2 means that nothing was handed over by this command line, so that a script may start
/// from the beginning. A migration that has a journal is not such a case, whatever is missing.
#[test]
fn a_migration_that_cannot_be_resumed_stays_unfinished() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let named = |path: &Path| format!("--resume={}", path.display());
    let in_folder = format!("--journal={}", folder.display());
    let id = "0".repeat(32);
    let unfinished = |end: &Value, reason: &str| {
        assert_eq!(end["exit_status"], 3, "{end}");
        assert_eq!(end["reason"], reason, "{end}");
        assert_ne!(end["guest"], "source", "{end}");
    };

    // Its port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ready = json!({
        "id": id, "stage": "ready", "mode": "hybrid", "postcopy": true,
        "running": true, "started": false, "given_up": false, "links": 1,
    });
    let destination = journal(
        folder,
        "destination",
        &json!({ "security": null, "engine": ready }),
    );
    let listen = format!("--listen={}", taken.local_addr().unwrap());
    let resume = [named(&destination), listen];
    let ended = end("receive", &resume.each_ref().map(String::as_str));
    unfinished(&ended, "cannot_listen");
    let again = ended["resume"].as_str().unwrap();
    assert!(again.starts_with("hikkoshi receive --resume="), "{again}");

    // Its certificates are gone, or it was encrypted.
    let gone = json!({ "ca": "/gone/ca", "cert": "/gone/cert", "key": "/gone/key" });
    let committed = json!({
        "security": { "Certified": { "files": gone, "host": "dst.example" } },
        "engine": { "id": id, "stage": "committed", "mode": "hybrid" },
    });
    let source = named(&journal(folder, "source", &committed));
    unfinished(&end("migrate", &[&source]), "credentials");
    unfinished(&end("migrate", &[&source, "--plaintext"]), "usage");
    unfinished(
        &end("migrate", &[&source, "--give-up"]),
        "confirmation_needed",
    );

    // Another version has written it, or there are several.
    let other = folder.join("source-2-2.json");
    std::fs::copy(folder.join("source-1-1.json"), &other).unwrap();
    unfinished(
        &end("migrate", &["--resume", &in_folder]),
        "journal_ambiguous",
    );
    std::fs::remove_file(folder.join("source-1-1.json")).unwrap();
    std::fs::write(&other, r#"{ "version": 99 }"#).unwrap();
    unfinished(&end("migrate", &[&named(&other)]), "journal");
    unfinished(&end("migrate", &["--resume", &in_folder]), "journal");
    let of_guest = ["--resume", "--qmp", "/nowhere/qmp", &in_folder];
    unfinished(&end("migrate", &of_guest), "journal");

    // Without a journal there is nothing to resume.
    std::fs::remove_file(other).unwrap();
    let ended = end("migrate", &of_guest);
    assert_eq!(ended["exit_status"], 2, "{ended}");
    assert_eq!(ended["reason"], "no_journal", "{ended}");
    let ended = end("migrate", &["--resume", "--bandwidth", "much", &in_folder]);
    assert_eq!(ended["exit_status"], 2, "{ended}");
    assert_eq!(ended["reason"], "usage", "{ended}");
}
