//! A `receive --daemon` admits guests by the certificates of their sources.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::receive_daemon::{Booted, Daemon};
use hikkoshi_tests::{
    CertificateAuthority, Program, SplitBrainWatcher, TestEnv, assert_command_refused, hikkoshi,
    unique_address,
};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::Command;

fn arguments(files: &[String; 6]) -> [&str; 6] {
    files.each_ref().map(String::as_str)
}

/// The host of an address.
fn host(address: &str) -> &str {
    address.split_once(':').unwrap().0
}

fn daemon_command(run: &Path) -> Command {
    let mut command = Command::new(hikkoshi());
    command.args([
        "receive",
        "--daemon",
        "--listen",
        "127.0.0.1:0",
        "--journal",
    ]);
    command.arg(run);
    command
}

/// Who is admitted, and what the others are told. Without guests: the last step fails because the
/// template starts no machine.
#[test]
fn certificates_are_admitted_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        fs::create_dir(path(name)).unwrap();
        CertificateAuthority::new(path(name))
    });
    let address = unique_address();
    let template = path("template");
    fs::write(&template, "sh -c 'echo no such machine >&2; exit 1'").unwrap();
    let rules = path("admit");
    let admitting = format!("# a comment\nsource.example web* --template {template}\n");
    fs::write(&rules, &admitting).unwrap();
    // Its certificate is for another host, and will be renewed.
    let [_, ca, _, crt, _, key] = ours.issue("elsewhere.example");
    let [_, _, _, new_crt, _, new_key] = ours.issue(host(&address));
    let security = ["--tls-ca", &ca, "--tls-cert", &crt, "--tls-key", &key];
    let run = folder.path().join("run");

    let refused = |more: &[&str], part: &str| {
        let mut command = daemon_command(&run);
        command.args(security).args(more);
        assert_command_refused(command, 2, &[part]);
    };
    refused(&[], "--admit");
    fs::write(&rules, "source.example web*\n").unwrap();
    refused(&["--admit", &rules], "line 1: ");
    fs::write(&rules, &admitting).unwrap();

    let more = [&security[..], &["--admit", &rules]].concat();
    let daemon = Daemon::start_by(Command::new(hikkoshi()), &run, &address, &more);
    let migrate = |certificate: &[String; 6], name: &str| {
        let mut command = Command::new(hikkoshi());
        command.args(["migrate", "--qmp", "/nowhere/qmp", &address, "--name", name]);
        command
            .args(certificate)
            .args(["--journal", &path("source")]);
        command
    };
    let source = ours.issue("source.example");
    let names = "the peer's certificate is not accepted";
    assert_command_refused(migrate(&source, "web1"), 1, &[names]);
    fs::copy(new_key, &key).unwrap();
    fs::copy(new_crt, &crt).unwrap();

    let [_, _, _, foreign_crt, _, foreign_key] = theirs.issue("source.example");
    let mixed = [
        "--tls-ca",
        &ca,
        "--tls-cert",
        &foreign_crt,
        "--tls-key",
        &foreign_key,
    ];
    let mixed = mixed.map(str::to_owned);
    for (certificate, name, status, part) in [
        (&mixed, "web1", 1, "the peer does not accept this side"),
        (&theirs.issue("source.example"), "web1", 1, names),
        (
            &ours.expired("source.example"),
            "web1",
            2,
            "it expired on 2001-01-01",
        ),
        (
            &ours.issue("other.example"),
            "web1",
            1,
            "this side's certificate may not send a guest of the name web1",
        ),
        (
            &source,
            "db",
            1,
            "this side's certificate may not send a guest of the name db",
        ),
        (&source, "web1", 1, "no such machine"),
    ] {
        assert_command_refused(migrate(certificate, name), status, &[part]);
    }
    daemon
        .program
        .wait_stderr("the certificate was read again: its files have changed");
    daemon
        .program
        .wait_stderr("admits the guest db by a certificate for source.example");
    daemon.program.wait_stderr("guest web1: not invited: ");

    // The rules are read for each guest, and a certificate that cannot be used changes nothing.
    fs::write(&rules, "nonsense\n").unwrap();
    fs::write(&crt, "nonsense").unwrap();
    let unusable = "its file for certificates cannot be used";
    assert_command_refused(migrate(&source, "web1"), 1, &[unusable]);
    daemon.program.wait_stderr("line 1: the name of a guest");
    daemon.program.wait_stderr("the one before is still used");

    // A daemon without certificates.
    let plain = Daemon::start_by(
        Command::new(hikkoshi()),
        &folder.path().join("plain"),
        &unique_address(),
        &[],
    );
    let mut command = Command::new(hikkoshi());
    command.args([
        "migrate",
        "--qmp",
        "/nowhere/qmp",
        plain.address(),
        "--name",
        "web1",
    ]);
    command.args(&source);
    let part = "the destination does not accept this kind of connection";
    assert_command_refused(command, 1, &[part]);
    plain
        .program
        .wait_stderr("asks for an invitation with a certificate, and this side has none");
}

/// Two guests, of which one stays in post-copy while the daemon, its receiver and its source are
/// killed. What resumes needs no certificate.
#[test]
#[ignore = "two guests, several engines: make test-daemon"]
fn guests_are_received_by_the_certificates_of_their_sources() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let journal = env.folder().join("source");
    let authority = CertificateAuthority::new(env.folder());
    let address = unique_address();
    let rules = env.folder().join("admit");
    let folder = env.folder().display();
    let rule = format!("source.example web-* --template '{folder}/{{name}} template'\n");
    fs::write(&rules, rule).unwrap();
    let certificate = authority.issue(host(&address));
    let more = [
        &arguments(&certificate)[..],
        &["--admit", rules.to_str().unwrap()],
    ]
    .concat();
    let start = |more: &[&str]| Daemon::start_by(Command::new(hikkoshi()), &run, &address, more);
    let mut daemon = start(&more);
    let [one, two] = ["web-one", "web-two"].map(|name| Booted::start(&env, name));
    let source = authority.issue("source.example");
    let to = |name: &'static str, more: &[&'static str]| {
        [
            &[address.as_str(), "--name", name][..],
            &arguments(&source),
            more,
        ]
        .concat()
    };

    // Nothing is pushed, so the migration stays in post-copy.
    let stay = ["--mode", "postcopy", "--background-delay", "3600000"];
    let migrate = two.migrate(&journal, &to("web-two", &stay));
    let mut migrate = Program::start("migrate two", migrate);
    let two = two.started(&run);
    let watcher = SplitBrainWatcher::start(&two.source, &two.destination);
    daemon
        .program
        .wait_stderr("web-two: hikkoshi: the guest runs here now");

    // A name that is in use, and a source that does not ask.
    let refused = one.migrate(&journal, &to("web-two", &[]));
    let part = "a guest with the name web-two is received already";
    assert_command_refused(refused, 1, &[part]);
    let nameless = [&[address.as_str()][..], &arguments(&source)].concat();
    let part = "the destination does not accept this kind of connection";
    assert_command_refused(one.migrate(&journal, &nameless), 1, &[part]);

    let moving = one.migrate(&journal, &to("web-one", &["--mode", "hybrid"]));
    let mut moving = Program::start("migrate one", moving);
    let one = one.started(&run);
    one.assert_moved(&moving.wait());
    daemon
        .program
        .wait_stderr("guest web-one: asked for by 127.");

    kill_process(daemon.receivers("web-two")[0], Signal::KILL).unwrap();
    daemon.program.kill();
    migrate.kill();
    migrate.wait_stderr("'hikkoshi migrate' was interrupted");
    for file in [&source[1], &source[3], &source[5], &certificate[5]] {
        fs::remove_file(file).unwrap();
    }
    daemon = start(&[]);
    daemon
        .program
        .wait_stderr("guest web-two: resuming its migration");
    let resume = two.migrate(&journal, &["--resume", "--background-delay", "0"]);
    let exit = Program::start("migrate --resume", resume).wait();
    two.assert_moved(&exit);
    watcher.finish();
    daemon.wait_nothing_left();
}
