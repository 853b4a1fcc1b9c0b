//! Output for programs: exit codes, `--json`, `--progress json`.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::Side;
use hikkoshi_lab::{VmConfig, Workload};
use hikkoshi_tests::{
    Exit, Guest, JsonReport, JsonSchema, MigrationPlan, Program, TestEnv, assert_command_refused,
    assert_refused, hikkoshi,
};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn json_report_is_the_only_standard_output() {
    let env = TestEnv::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    let (exits, finished) = guest
        .start_migration(&MigrationPlan::new("hybrid").json_to_stdout())
        .wait();
    exits.assert_source(0, &[]);
    JsonReport::read(&exits.migrate.stdout).check(Side::Source, "hybrid", 256);
    JsonSchema::published().assert("file", &exits.migrate.stdout);
    assert_eq!(finished.destination.status().unwrap(), "running");
    guest.set_vm(finished.destination);
    // A report that cannot be written does not change where the guest is.
    let plan = MigrationPlan::new("hybrid")
        .migrate_args(&["--progress", "none"])
        .json_to_unwritable_path();
    let (exits, finished) = guest.start_migration(&plan).wait();
    exits.assert_source(0, &["writing the result"]);
    let printed = &exits.migrate.stdout;
    assert!(
        printed.contains("next: end the source's QEMU (process ") && printed.contains("'quit'"),
        "{printed}"
    );
    // Only with `--verbose`.
    assert!(!printed.contains("    up to "), "{printed}");
    assert_eq!(finished.destination.status().unwrap(), "running");
    guest.set_vm(finished.destination);
    guest.assert_healthy();
}

#[test]
fn progress_json_is_one_object_per_line() {
    let env = TestEnv::new();
    let workload = Workload::verify(16).rate(5000).option("every_ms", 200);
    let mut guest = Guest::boot(&env, VmConfig::new().workload(workload));
    let slowly = ["--progress", "json", "--bandwidth", "60M"];
    let plan = MigrationPlan::new("hybrid").migrate_args(&slowly);
    let (exits, finished) = guest.start_migration(&plan).wait();
    guest.complete_migration(&exits, finished, "running");
    let mut progress = 0;
    for line in exits.migrate.stderr.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        progress += u32::from(value["progress"]["done_pages"].is_u64());
    }
    assert!(progress > 0);
    let end = JsonSchema::published().end_of(&exits.migrate.stderr);
    assert_eq!(end["exit_status"], 0);
    assert_eq!(end["reason"], "moved");
    assert_eq!(end["guest"], "destination");
}

/// Runs `hikkoshi` with these arguments.
fn run(words: &str, more: &[&str], log: &str) -> Exit {
    let mut command = Command::new(hikkoshi());
    command.args(words.split_whitespace()).args(more);
    Program::start("hikkoshi", {
        command.env("HIKKOSHI_LOG", log);
        command
    })
    .wait()
}

/// Every failure, however early, is reported as JSON.
#[test]
fn failures_are_json_for_programs() {
    let env = TestEnv::new();
    let schema = JsonSchema::published();
    let file = env.folder().join("account.json");
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
        is_that(&schema.end_of(&ended.stderr));
        assert_eq!(ended.stdout, "");
        is_that(&error_in(&schema, &file));
        // Without `--progress json`, standard error is text and only the report is JSON.
        let ended = run(words, &["--json", "-"], "trace");
        assert_eq!(ended.code, Some(status), "{ended:?}");
        is_that(&schema.assert("file", &ended.stdout)["error"]);
        assert!(
            !ended.stderr.contains('\u{1b}'),
            "no terminal, no colours: {ended:?}"
        );
        if reason != "usage" {
            let ours = |line: &str| line.starts_with("hikkoshi: ");
            assert!(ended.stderr.lines().all(ours), "{}", ended.stderr);
        }
    }
}

fn error_in(schema: &JsonSchema, file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::remove_file(file).unwrap();
    schema.assert("file", &text)["error"].take()
}

/// A log filter with unknown words is refused, because it would show nothing.
#[test]
fn an_unknown_log_filter_is_refused() {
    for filter in ["verbose", "qemu=debug", "debug,hikkoshi_qemu"] {
        let mut command = Command::new(hikkoshi());
        command.args(["receive", "--qmp", "/nowhere", "--listen", "unix:/nowhere"]);
        command.env("HIKKOSHI_LOG", filter);
        let allowed = ["HIKKOSHI_LOG", "debug and trace", "hikkoshi_qemu=debug"];
        assert_command_refused(command, 2, &allowed);
    }
}

/// A destination that waits too long for its source reports that, and its QEMU can be used again.
#[test]
fn a_source_that_does_not_come() {
    let env = TestEnv::new();
    let schema = JsonSchema::published();
    let vm = VmConfig::new()
        .incoming()
        .start(env.lab(), "waits")
        .unwrap();
    let receive = || {
        let mut command = Command::new(hikkoshi());
        command.args(["receive", "--listen", "127.0.0.1:0", "--invite", "--qmp"]);
        command.arg(vm.qmp_path());
        command.args(["--progress", "json", "--journal"]);
        command.arg(env.folder().join("journal"));
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
    // Standard output that no process reads is not an error here.
    let soon = ["--wait-for", "1s"];
    ends_for(receive().args(soon).stdout(Stdio::null()), "no_source");
    let file = std::fs::File::create(env.folder().join("printed")).unwrap();
    ends_for(receive().args(soon).stdout(file), "no_source");
    // The reading end of a pipe fails before a source has connected.
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
fn invalid_usage_exits_with_2() {
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
        let ended = assert_refused(arguments, 2, &[]);
        assert!(
            ended.stderr.contains("Usage") || ended.stderr.contains("--help"),
            "{ended:?}"
        );
    }
}

#[test]
fn plaintext_tcp_beyond_this_machine_needs_an_option() {
    let why = ["is beyond this host", "without encryption", "--plaintext"];
    assert_refused(&["migrate", "--qmp", "/nowhere", "10.1.2.3:7000"], 2, &why);
    // With `--plaintext`, the next check fails; likewise where encryption is requested.
    let next = ["QMP socket /nowhere"];
    assert_refused(
        &["receive", "--qmp", "/nowhere", "--listen", "0.0.0.0:0"],
        1,
        &next,
    );
    assert_refused(
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
    assert_refused(
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
