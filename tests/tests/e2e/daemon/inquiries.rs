//! Hosts are asked: by the certificate of a `hikkoshi daemon`, and by ssh. Without guests.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::Daemon;
use crate::dashboard::Dashboard;
use crate::recovery::journals::children;
use hikkoshi_tests::{
    CertificateAuthority, Exit, JsonSchema, Program, eventually, hikkoshi, unique_address,
};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The lines of `status --host --json`, and how it ended.
fn status(arguments: &[&str]) -> (Vec<Value>, Exit) {
    let mut command = Command::new(hikkoshi());
    command.args(["status", "--json"]).args(arguments);
    let exit = Program::start("status --host", command).wait();
    let schema = JsonSchema::of_status();
    let line = |line: &str| schema.assert("host_answer", line);
    (exit.stdout.lines().map(line).collect(), exit)
}

/// The names and states of the guests in an answer whose name ends so, and how many others there
/// are. Other QEMUs run on the host of the test.
fn guests(answer: &Value, end: &str) -> (Vec<(String, String)>, u64) {
    let status = &answer["status"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let guests = status["guests"].as_array().unwrap().iter();
    let guests = guests.map(|guest| (text(&guest["name"]), text(&guest["state"])));
    let guests = guests.filter(|(name, _)| name.ends_with(end)).collect();
    (guests, status["other_guests"].as_u64().unwrap())
}

#[test]
fn a_host_is_asked_by_a_certificate_or_by_ssh() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let authority = CertificateAuthority::new(folder);
    let address = unique_address();
    let host = address.split_once(':').unwrap().0;
    let (run, template) = (folder.join("run"), path("template"));
    // It does not open a QMP socket, so the guests stay awaited.
    fs::write(&template, "sh -c 'exec sleep 1000'").unwrap();
    let rules = format!(
        "source.example web* --template {template}\n\
         ops.example --inquire\n"
    );
    let admit = path("admit");
    fs::write(&admit, rules).unwrap();
    let certificate = authority.issue(host);
    let certificate: Vec<_> = certificate.iter().map(String::as_str).collect();
    let more = [&certificate[..], &["--admit", &admit, "--max-guests", "9"]].concat();
    let daemon = Daemon::start_by(Command::new(hikkoshi()), &run, &address, &more);
    // Another run's guests may have other names.
    let unique = format!("-{}", std::process::id());
    let _invited = ["web", "db"].map(|name| {
        let name = format!("{name}{unique}");
        let invite = daemon.invite(&["--template", &template, "--name", &name]);
        Program::start("invite", invite)
    });
    eventually("both guests to be awaited", || {
        let marks = fs::read_dir(run.join("machines")).map_or(0, |files| {
            let names = files.map(|file| file.unwrap().file_name());
            let marks = names.filter(|name| name.to_str().unwrap().ends_with(".waiting"));
            marks.count()
        });
        (marks == 2)
            .then_some(())
            .ok_or_else(|| format!("{marks} marks"))
    });
    let awaited = |name: &str| (format!("{name}{unique}"), "awaited".to_owned());

    // Two hosts, one of which does not answer.
    let ask = |certificate: &[String; 6], more: &[&str]| {
        let files = certificate.each_ref().map(String::as_str);
        status(&[&["--host", &address][..], &files, more].concat())
    };
    let nobody = unique_address();
    let (lines, exit) = ask(&authority.issue("ops.example"), &["--host", &nobody]);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    let [answer, silent] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(answer["asked"], address.as_str());
    let (all, others) = guests(answer, &unique);
    assert_eq!((all, others), (vec![awaited("db"), awaited("web")], 0));
    let status = &answer["status"];
    assert_eq!(status["limits"]["max_guests"], 9);
    assert_eq!(status["limits"]["guests"], 2);
    assert!(status["host"]["memory"]["available_bytes"].as_u64() > Some(0));
    let flags = status["host"]["processors"]["flags"].as_array().unwrap();
    assert!(flags.contains(&"sse2".into()), "{flags:?}");
    assert_eq!(silent["asked"], nobody.as_str());
    let why = silent["error"].as_str().unwrap();
    assert!(why.contains("the connection failed"), "{why}");

    // A source is told of the guests that it may send.
    let (lines, exit) = ask(&authority.issue("source.example"), &[]);
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let (own, others) = guests(&lines[0], &unique);
    assert_eq!(own, [awaited("web")]);
    assert!(others >= 1, "{others}");

    // Others are refused, with the reason.
    let (lines, exit) = ask(&authority.issue("other.example"), &[]);
    assert_eq!(exit.code, Some(1), "{exit:?}");
    let part = "this side's certificate may not ask about that host";
    assert!(
        lines[0]["error"].as_str().unwrap().contains(part),
        "{lines:?}"
    );
    daemon
        .program
        .wait_stderr("has a certificate for other.example, which asks about this host");

    // By ssh: a script in its place.
    fs::write(
        path("rsh"),
        "case $1 in down) exit 255;; silent) exec sleep 1000;; esac\nexec sh -c \"$2\"\n",
    )
    .unwrap();
    let (rsh, program) = (format!("sh '{}'", path("rsh")), hikkoshi());
    let by_ssh = [
        &["--host", "up", "--host", "down", "--rsh", &rsh][..],
        &["--remote-hikkoshi", program.to_str().unwrap()],
        &["--remote-journal", run.to_str().unwrap()],
    ];
    let (lines, exit) = self::status(&by_ssh.concat());
    assert_eq!(exit.code, Some(1), "{exit:?}");
    let (all, _) = guests(&lines[0], &unique);
    assert_eq!(all.first(), Some(&awaited("db")), "{lines:?}");
    assert!(lines[0]["status"].get("limits").is_none());
    assert_eq!(lines[1]["asked"], "down");
    assert!(
        lines[1]["error"].as_str().unwrap().contains("255"),
        "{lines:?}"
    );

    // For people.
    let mut command = Command::new(hikkoshi());
    command.arg("status").args(by_ssh.concat());
    let exit = Program::start("status --host", command).wait();
    let down = exit
        .stdout
        .lines()
        .find(|line| line.starts_with("down "))
        .unwrap();
    assert!(down.contains("NONE: "), "{exit:?}");
    assert!(
        exit.stdout.contains("no migration runs on these hosts"),
        "{exit:?}"
    );

    // In the dashboard of another host, which asks by another process. One that is silent delays
    // no other one.
    let of_other = tempfile::tempdir().unwrap();
    let with_silent = [&["--host", "silent"], &by_ssh.concat()[..]].concat();
    let dashboard = Dashboard::start_with(of_other.path(), &with_silent);
    let mut hosts: Vec<Value> = Vec::new();
    eventually("two hosts in the dashboard", || {
        hosts = serde_json::from_str(&dashboard.get("/api/hosts")).unwrap();
        (hosts.len() == 2)
            .then_some(())
            .ok_or_else(|| format!("{hosts:?}"))
    });
    assert!(hosts[0]["error"].as_str().unwrap().contains("255"));
    assert_eq!(guests(&hosts[1], &unique).0.first(), Some(&awaited("db")));
    let asking = children(dashboard.pid());
    assert_eq!(asking.len(), 1, "{asking:?}");
    dashboard.end();
    eventually("the process that asks to end", || {
        let exists = Path::new("/proc").join(asking[0].to_string()).exists();
        (!exists).then_some(()).ok_or("it still runs".to_owned())
    });
}
