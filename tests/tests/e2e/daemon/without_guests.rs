//! Invitations that no source uses, and the limits of a daemon. Without guests.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Daemon, write_template};
use hikkoshi_lab::VmConfig;
use hikkoshi_tests::{
    JsonSchema, LONG, Program, TestEnv, assert_command_refused, eventually, hikkoshi,
    unique_address,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A template whose program does not open a QMP socket, and does not end.
fn sleeping_template(folder: &Path) -> PathBuf {
    let template = folder.join("sleeping template");
    fs::write(&template, "sh -c 'exec sleep 1000'").unwrap();
    template
}

/// The soft limit of open files of a process.
fn open_files(pid: u32) -> String {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let line = line.unwrap();
    line.split_whitespace().nth(3).unwrap().to_owned()
}

/// Starts hikkoshi with these limits of open files, soft and hard.
fn limited(soft: &str, hard: &str) -> Command {
    let mut command = Command::new("sh");
    let words = "ulimit -Sn \"$1\" && ulimit -Hn \"$2\" && shift 2 && exec \"$@\"";
    command
        .args(["-c", words, "sh", soft, hard])
        .arg(hikkoshi());
    command
}

/// An invitation is withdrawn while its machine is started. The name is taken until then, also for
/// a request at the same time.
#[test]
fn a_receiver_that_is_being_started_is_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let template = sleeping_template(folder.path());
    let template = template.to_str().unwrap();
    let daemon = Daemon::start_by(limited("300", "4000"), &run, &unique_address(), &[]);
    let invite = ["--template", template, "--name", "slow"];
    let both =
        [0, 1].map(|number| Program::start(&format!("invite {number}"), daemon.invite(&invite)));
    let mark = run.join("machines/slow.waiting");
    eventually("the machine to be started", || match mark.exists() {
        true => Ok(()),
        false => Err("no mark".to_owned()),
    });
    // Until it executes the template's command, the process for that has the receiver's words.
    let mut receivers = Vec::new();
    eventually("one receiver", || {
        receivers = daemon.receivers("slow");
        (receivers.len() == 1)
            .then_some(())
            .ok_or(format!("{receivers:?}"))
    });
    // The daemon may have as many files open as it can; what it starts may not.
    assert_eq!(open_files(daemon.program.pid()), "4000");
    let receiver = u32::try_from(receivers[0].as_raw_nonzero().get()).unwrap();
    eventually("the limit of the receiver", || match open_files(receiver) {
        limit if limit == "300" => Ok(()),
        limit => Err(limit),
    });
    let withdraw = || Program::start("withdraw", daemon.invite(&["--withdraw", "slow"])).wait();
    withdraw().assert(0, &["the invitation was withdrawn"]);
    let mut exits = both.map(|mut invite| invite.wait());
    exits.sort_by_key(|exit| exit.stderr.contains("is invited or received already"));
    exits[0].assert(1, &["the invitation was withdrawn"]);
    exits[1].assert(
        1,
        &["a guest with the name slow is invited or received already"],
    );
    daemon
        .program
        .wait_stderr("guest slow: its invitation was withdrawn");
    assert!(!mark.exists());
    daemon.wait_nothing_left();
    withdraw().assert(1, &["no guest with the name slow is awaited"]);
}

#[test]
fn guests_that_need_too_many_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = limited("300", "1000");
    command.args(["daemon", "--listen", "127.0.0.1:0"]);
    command
        .args(["--max-guests", "400", "--journal"])
        .arg(folder.path());
    let parts = ["needs 1312 open files", "may have 1000", "--max-guests 244"];
    assert_command_refused(command, 2, &parts);
}

/// An invitation that no source uses ends by itself.
#[test]
#[ignore = "a machine: make test-daemon"]
fn an_invitation_expires() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let daemon = Daemon::start(&run, &unique_address());
    let template = env.folder().join("template");
    let expected = VmConfig::new().expect(env.lab(), "expires").unwrap();
    write_template(&template, &expected.command_line());
    daemon.invitation(&template, "late", &["--wait-for", "15s"]);
    let machine = expected.wait(&run.join("machines/late.qmp")).unwrap();
    machine.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr("guest late: not received");
    let result = fs::read_to_string(run.join("receivers/late.json")).unwrap();
    assert!(result.contains("\"no_source\""), "{result}");
    daemon.wait_nothing_left();
}

/// A program takes the invitation from the result, and tells apart why there is none.
#[test]
fn invitations_are_for_programs_too() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let waiting = VmConfig::new()
        .incoming()
        .start(env.lab(), "there")
        .unwrap();
    let command = Command::new(hikkoshi());
    let daemon = Daemon::start_by(command, &run, &unique_address(), &["--max-guests", "1"]);
    let schema = JsonSchema::published();
    let file = env.folder().join("result.json");
    let invite = |arguments: &[&str], to: &str, status: i32| {
        let arguments = [arguments, &["--json", to]].concat();
        let exit = Program::start("invite", daemon.invite(&arguments)).wait();
        exit.assert(status, &[]);
        let text = match to {
            "-" => exit.stdout,
            file => fs::read_to_string(file).unwrap(),
        };
        schema.assert("invite", text.trim())
    };
    let path = file.to_str().unwrap();
    let qmp = waiting.qmp_path().to_str().unwrap();
    let named = |name| ["--qmp", qmp, "--name", name];
    let invited = invite(&named("web"), "-", 0);
    assert_eq!(invited["name"], "web");
    let invitation = invited["invitation"].as_str().unwrap();
    assert!(invitation.ends_with(&format!("@{}", daemon.address())));

    let reason = |result: &Value| result["error"]["reason"].as_str().unwrap().to_owned();
    assert_eq!(reason(&invite(&named("db"), path, 1)), "full");
    let withdraw = ["--withdraw", "web"];
    let withdrawn = invite(&withdraw, path, 0);
    assert_eq!(withdrawn, json!({ "withdrawn": "web" }));
    assert_eq!(reason(&invite(&withdraw, path, 1)), "daemon");

    fs::remove_file(&file).unwrap();
    let unwritable = [&named("web")[..], &["--json", "/nowhere/result"]].concat();
    let parts = [
        "writing the result to /nowhere/result",
        "nothing was asked for",
    ];
    assert_command_refused(daemon.invite(&unwritable), 2, &parts);
    let again = invite(&named("web"), path, 0);
    assert_ne!(again["invitation"], invited["invitation"]);
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    invite(&withdraw, "-", 0);
    let result = fs::read_to_string(run.join("receivers/web.json")).unwrap();
    let result = serde_json::from_str(&result).unwrap();
    assert_eq!(reason(&result), "reader_gone");
    daemon.wait_nothing_left();
}
