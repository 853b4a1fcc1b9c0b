//! What programs read: exit codes, `--json`, `--progress json`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Account, Ended, Guest, Program, Scene, Schema, Trip, hikkoshi, refused, refused_command,
};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn json_on_standard_output_is_alone_there() {
    let scene = Scene::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    let (ends, arrived) = guest.set_out(&Trip::by("hybrid").json_printed()).wait();
    ends.assert_source(0, &[]);
    Account::read(&ends.migrate.printed).check("hybrid", 256);
    Schema::published().assert("file", &ends.migrate.printed);
    assert_eq!(arrived.destination.status().unwrap(), "running");
    guest.is_now_in(arrived.destination);
    // An account that cannot be written does not change where the guest is.
    let trip = Trip::by("hybrid")
        .with(&["--progress", "none"])
        .json_nowhere();
    let (ends, arrived) = guest.set_out(&trip).wait();
    ends.assert_source(0, &["writing the account"]);
    let printed = &ends.migrate.printed;
    assert!(
        printed.contains("next: end the source's QEMU (process ") && printed.contains("'quit'"),
        "{printed}"
    );
    // Only with --verbose.
    assert!(!printed.contains("    up to "), "{printed}");
    assert_eq!(arrived.destination.status().unwrap(), "running");
    guest.is_now_in(arrived.destination);
    guest.is_sound();
}

#[test]
fn progress_for_programs_is_json_line_by_line() {
    let scene = Scene::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&scene, VmConfig::new().workload(workload));
    let slowly = ["--progress", "json", "--bandwidth", "60M"];
    let trip = Trip::by("hybrid").with(&slowly);
    let (ends, arrived) = guest.set_out(&trip).wait();
    guest.arrive(&ends, arrived, "running");
    let mut progress = 0;
    for line in ends.migrate.said.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        progress += u32::from(value["progress"]["done_pages"].is_u64());
    }
    assert!(progress > 0);
    let end = Schema::published().end_of(&ends.migrate.said);
    assert_eq!(end["exit_status"], 0);
    assert_eq!(end["reason"], "moved");
    assert_eq!(end["guest"], "destination");
}

/// Runs `hikkoshi` with these words, and more.
fn run(words: &str, more: &[&str], log: &str) -> Ended {
    let mut command = Command::new(hikkoshi());
    command.args(words.split_whitespace()).args(more);
    Program::start("hikkoshi", {
        command.env("HIKKOSHI_LOG", log);
        command
    })
    .wait()
}

/// Whatever goes wrong, and however early: a program reads JSON.
#[test]
fn failures_are_json_for_programs() {
    let scene = Scene::new();
    let schema = Schema::published();
    let file = scene.folder().join("account.json");
    let named = file.to_str().unwrap();
    for (words, status, reason, guest) in [
        ("migrate", 2, "usage", "unknown"),
        ("receive --collapse=much", 2, "usage", "unknown"),
        (
            "migrate --qmp /nowhere unix:/nowhere",
            1,
            "not_attached",
            "source",
        ),
        (
            "migrate --qmp /nowhere 10.1.2.3:7000",
            2,
            "encryption_needed",
            "unknown",
        ),
        (
            "migrate --qmp /nowhere --to nonsense",
            2,
            "credentials",
            "unknown",
        ),
        (
            "migrate --resume=/nowhere/journal.json",
            2,
            "no_journal",
            "unknown",
        ),
        (
            "receive --qmp /nowhere --listen unix:/nowhere",
            1,
            "not_attached",
            "source",
        ),
    ] {
        let is_that = |end: &serde_json::Value| {
            assert_eq!(end["exit_status"], status, "{words}: {end}");
            assert_eq!(end["reason"], reason, "{words}: {end}");
            assert_eq!(end["guest"], guest, "{words}: {end}");
        };
        let ended = run(words, &["--progress", "json", "--json", named], "trace");
        assert_eq!(ended.code, Some(status), "{ended:?}");
        is_that(&schema.end_of(&ended.said));
        assert_eq!(ended.printed, "");
        is_that(&error_in(&schema, &file));
        // A person reads the same as text, and a program that asked for nothing but the account.
        let ended = run(words, &["--json", "-"], "trace");
        assert_eq!(ended.code, Some(status), "{ended:?}");
        is_that(&schema.assert("file", &ended.printed)["error"]);
        assert!(
            !ended.said.contains('\u{1b}'),
            "no terminal, no colours: {ended:?}"
        );
        if reason != "usage" {
            let ours = |line: &str| line.starts_with("hikkoshi: ");
            assert!(ended.said.lines().all(ours), "{}", ended.said);
        }
    }
}

fn error_in(schema: &Schema, file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::remove_file(file).unwrap();
    schema.assert("file", &text)["error"].take()
}

/// A filter that shows nothing, because its words are wrong, is no filter.
#[test]
fn an_unknown_log_filter_is_refused() {
    for filter in ["verbose", "qemu=debug", "debug,hikkoshi_qemu"] {
        let mut command = Command::new(hikkoshi());
        command.args(["receive", "--qmp", "/nowhere", "--listen", "unix:/nowhere"]);
        command.env("HIKKOSHI_LOG", filter);
        let allowed = ["HIKKOSHI_LOG", "debug or trace", "hikkoshi_qemu=debug"];
        refused_command(command, 2, &allowed);
    }
}

/// Somebody who waits in vain is told so, and the QEMU is not used up by that.
#[test]
fn a_source_that_does_not_come() {
    let scene = Scene::new();
    let schema = Schema::published();
    let vm = VmConfig::new()
        .incoming()
        .start(scene.lab(), "waits")
        .unwrap();
    let receive = || {
        let mut command = Command::new(hikkoshi());
        command.args(["receive", "--listen", "127.0.0.1:0", "--invite", "--qmp"]);
        command.arg(vm.qmp_path());
        command.args(["--progress", "json", "--journal"]);
        command.arg(scene.folder().join("journal"));
        command.stdin(Stdio::null());
        command
    };
    let ends_for = |command: &mut Command, reason: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let end = schema.end_of(&said);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(end["reason"], reason, "{end}");
        assert_eq!(end["guest"], "source", "{end}");
    };
    // Nobody reads /dev/null, and nobody expects that.
    let soon = ["--wait-for", "1s"];
    ends_for(receive().args(soon).stdout(Stdio::null()), "no_source");
    let file = std::fs::File::create(scene.folder().join("printed")).unwrap();
    ends_for(receive().args(soon).stdout(file), "no_source");
    // The other end of a pipeline fails before it has connected.
    let (reader, writer) = std::io::pipe().unwrap();
    let waiting = std::thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).unwrap();
        line
    });
    ends_for(receive().stdout(writer), "reader_gone");
    assert!(waiting.join().unwrap().starts_with("hikkoshi1:"));
    assert_eq!(vm.status().unwrap(), "inmigrate");
}

#[test]
fn bad_usage_is_2() {
    let usage: [&[&str]; 9] = [
        &[],
        &["emigrate"],
        &["migrate"],
        &["migrate", "--qmp", "/nowhere"],
        &["migrate", "--qmp", "/nowhere", "no-address"],
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "unix:/nowhere",
            "--mode",
            "fast",
        ],
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "unix:/nowhere",
            "--bandwidth",
            "0",
        ],
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "unix:/nowhere",
            "--max-downtime",
            "soon",
        ],
        &["receive", "--qmp", "/nowhere"],
    ];
    for arguments in usage {
        let ended = refused(arguments, 2, &[]);
        assert!(
            ended.said.contains("Usage") || ended.said.contains("--help"),
            "{ended:?}"
        );
    }
}

#[test]
fn tcp_beyond_this_machine_has_to_be_said_aloud() {
    let why = [
        "is beyond this machine",
        "without encryption",
        "--plaintext",
    ];
    refused(&["migrate", "--qmp", "/nowhere", "10.1.2.3:7000"], 2, &why);
    // Said aloud, it is the next thing that is wrong; and so where encryption
    // is what is meant.
    let next = ["QMP socket /nowhere"];
    refused(
        &["receive", "--qmp", "/nowhere", "--listen", "0.0.0.0:0"],
        1,
        &next,
    );
    refused(
        &[
            "migrate",
            "--qmp",
            "/nowhere",
            "10.1.2.3:7000",
            "--plaintext",
        ],
        1,
        &next,
    );
    refused(
        &[
            "receive",
            "--qmp",
            "/nowhere",
            "--listen",
            "0.0.0.0:0",
            "--plaintext",
        ],
        1,
        &next,
    );
}
