//! Giving up a migration takes nothing but what is written down of it.

// Helpers outside the test function: their failure is the message too.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A journal of a QEMU that has ended.
fn journal(folder: &Path, side: &str, rest: &Value) -> PathBuf {
    let namespace =
        |kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map(|file| file.ino());
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut journal = json!({
        "form": 2,
        "address": "192.0.2.1:7000",
        "options": [],
        "qemu": {
            "place": {
                "qmp": "/nowhere/qmp",
                // We were not started with the machine: that was another process.
                "pid": std::process::id(),
                "started": 0,
                "view": {
                    "boot": boot.trim_end(),
                    "pids": namespace("pid").unwrap(),
                    "times": namespace("time").ok(),
                },
                "description": {
                    "machine": "pc-q35-7.2",
                    "architecture": "x86_64",
                    "cpus": 1,
                    "cpu_model": "qemu64",
                    "hypervisor": "QEMU 7.2",
                    "running": true,
                    "blocks": [{
                        "id": "ram",
                        "bytes": 4096,
                        "host_page": 4096,
                        "guest": [{ "gpa": 0, "offset": 0, "bytes": 4096 }],
                    }],
                },
                "memory": [],
            },
            "settings": { "capabilities": {}, "parameters": {} },
            "userfault": null,
            "undo": {
                "settings": { "capabilities": {}, "parameters": {} },
                "stopped": null,
            },
        },
    });
    let fields = rest.as_object().unwrap().clone();
    journal.as_object_mut().unwrap().extend(fields);
    let path = folder.join(format!("{side}-1-1.json"));
    std::fs::write(&path, journal.to_string()).unwrap();
    path
}

/// How it ends, and what it says.
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

/// Where certificates were, which may be elsewhere by now: nobody connects.
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
    // Its source may come after all, and be let in as before.
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
    // As far as it can get without a QEMU.
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("the source's QEMU has ended"), "{said}");
}
