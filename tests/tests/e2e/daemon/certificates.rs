//! A `hikkoshi daemon` admits guests by the certificates of their sources.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Booted, Daemon, write_template};
use hikkoshi_lab::VmConfig;
use hikkoshi_tests::{
    CertificateAuthority, LONG, Program, SplitBrainWatcher, TestEnv, assert_command_refused,
    hikkoshi, unique_address,
};
use rustix::process::{Signal, kill_process};
use std::ffi::OsString;
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
    command.args(["daemon", "--listen", "127.0.0.1:0", "--journal"]);
    command.arg(run);
    command
}

/// Who is admitted, and what the others are told. The last step fails because the template starts
/// no machine.
#[test]
fn certificates_are_admitted_by_their_names() {
    let env = TestEnv::new();
    let folder = env.folder();
    let guest = VmConfig::new().start(env.lab(), "here").unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let [ours, theirs] = ["ours", "theirs"].map(|name| {
        fs::create_dir(path(name)).unwrap();
        CertificateAuthority::new(path(name))
    });
    let address = unique_address();
    let template = path("template");
    fs::write(&template, "sh -c 'echo no such machine >&2; exit 1'").unwrap();
    let rules = path("admit");
    let admitting = format!("# a comment\nsource.example web* --template {template}\n");
    // Its certificate is for another host, and will be renewed.
    let [_, ca, _, crt, _, key] = ours.issue("elsewhere.example");
    let [_, _, _, new_crt, _, new_key] = ours.issue(host(&address));
    let security = ["--tls-ca", &ca, "--tls-cert", &crt, "--tls-key", &key];
    let run = folder.join("run");

    let mut command = daemon_command(&run);
    command.args(security);
    assert_command_refused(command, 2, &["--admit"]);
    // It starts without either: it is needed by guests that are here already.
    fs::write(&rules, "source.example web*\n").unwrap();
    let elsewhere = fs::read(&crt).unwrap();
    fs::write(&crt, "nonsense").unwrap();
    let more = [&security[..], &["--admit", &rules]].concat();
    let daemon = Daemon::start_by(Command::new(hikkoshi()), &run, &address, &more);
    daemon
        .program
        .wait_stderr("the certificate cannot be used, and no source is admitted");
    let broken = daemon
        .program
        .wait_stderr("no source is admitted by a certificate until");
    assert!(broken.contains("line 1: "), "{broken}");
    let migrate_from = |qmp: &str, certificate: &[String; 6], name: &str| {
        let mut command = Command::new(hikkoshi());
        command.args(["migrate", "--qmp", qmp, &address, "--name", name]);
        command
            .args(certificate)
            .args(["--journal", &path("source")]);
        command
    };
    let qmp = guest.qmp_path().to_str().unwrap();
    let migrate = |certificate: &[String; 6], name| migrate_from(qmp, certificate, name);
    let source = ours.issue("source.example");
    let none = "the destination does not accept this kind of connection";
    assert_command_refused(migrate(&source, "web1"), 1, &[none]);
    fs::write(&rules, &admitting).unwrap();
    fs::write(&crt, elsewhere).unwrap();
    let read_again = "the certificate was read again: its files have changed";
    daemon.program.wait_stderr(read_again);
    let names = "the peer's certificate is not accepted";
    assert_command_refused(migrate(&source, "web1"), 1, &[names]);
    fs::copy(new_key, &key).unwrap();
    fs::copy(new_crt, &crt).unwrap();
    daemon.program.wait_stderr_count(read_again, 2);
    // The guest is looked at first: the daemon starts a machine for it.
    let unmovable = migrate_from("/nowhere/qmp", &source, "web1");
    assert_command_refused(unmovable, 1, &["/nowhere/qmp"]);
    assert_command_refused(migrate(&ours.issue("other.example"), "web1"), 1, &[]);
    let admitted = "guest web1: asked for by";
    assert_eq!(daemon.program.stderr_count(admitted), 0);

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
        // Without what its QEMU has written.
        (
            &source,
            "web1",
            1,
            "what receives the guest could not be started (the destination's log says why)",
        ),
    ] {
        assert_command_refused(migrate(certificate, name), status, &[part]);
    }
    daemon
        .program
        .wait_stderr("admits the guest db by a certificate for source.example");
    daemon.program.wait_stderr("guest web1: not invited: ");
    daemon.program.wait_stderr("no such machine");

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
        &folder.join("plain"),
        &unique_address(),
        &[],
    );
    let mut command = Command::new(hikkoshi());
    command.args(["migrate", "--qmp", qmp, plain.address(), "--name", "web1"]);
    command.args(&source);
    let part = "the destination does not accept this kind of connection";
    assert_command_refused(command, 1, &[part]);
    plain
        .program
        .wait_stderr("asks for an invitation with a certificate, and this side has none");
}

/// A daemon starts a machine for a source that gives up then: it was killed, or its guest does not
/// fit. The machine ends at once, and the guest can come again.
#[test]
#[ignore = "several machines: make test-daemon"]
fn a_source_that_gives_up_leaves_nothing() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let journal = env.folder().join("source");
    let authority = CertificateAuthority::new(env.folder());
    let address = unique_address();
    let rules = env.folder().join("admit");
    let guest = Booted::start(&env, "web-one");
    let template = guest.template.to_str().unwrap();
    fs::write(
        &rules,
        format!("source.example * --template '{template}'\n"),
    )
    .unwrap();
    let certificate = authority.issue(host(&address));
    let admit = ["--admit", rules.to_str().unwrap()];
    let more = [&arguments(&certificate)[..], &admit].concat();
    let daemon = Daemon::start_by(Command::new(hikkoshi()), &run, &address, &more);
    let source = authority.issue("source.example");
    let to = [
        &[address.as_str(), "--name", "web-one"][..],
        &arguments(&source),
    ]
    .concat();
    let migrate = || Program::start("migrate", guest.migrate(&journal, &to));
    let own = fs::read(&guest.template).unwrap();
    let qmp = run.join("machines/web-one.qmp");
    let received = "guest web-one: not received";

    // It is killed while its machine is started.
    let late = VmConfig::new().expect(env.lab(), "late").unwrap();
    let go = env.folder().join("go");
    let wait = format!(
        "until [ -e {} ]; do sleep 0.05; done; exec \"$@\"",
        go.display()
    );
    let shell = ["sh", "-c", &wait, "sh"].map(OsString::from);
    write_template(
        &guest.template,
        &[&shell[..], &late.command_line()].concat(),
    );
    let mut killed = migrate();
    daemon.program.wait_stderr("guest web-one: asked for by");
    killed.kill();
    fs::write(&go, "").unwrap();
    let late = late.wait(&qmp).unwrap();
    late.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr(received);
    let result = fs::read_to_string(run.join("receivers/web-one.json")).unwrap();
    assert!(result.contains("has gone"), "{result}");
    daemon.wait_nothing_left();

    let other = VmConfig::new().cpus(2).expect(env.lab(), "other").unwrap();
    write_template(&guest.template, &other.command_line());
    let mut refused = migrate();
    let other = other.wait(&qmp).unwrap();
    refused.wait().assert(1, &["runs at the source"]);
    other.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr_count(received, 2);
    daemon.wait_nothing_left();

    fs::write(&guest.template, own).unwrap();
    let mut moving = migrate();
    let guest = guest.started(&run);
    guest.assert_moved(&moving.wait());
    daemon.wait_nothing_left();
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
    let admitting = ["source.example", "second.example"]
        .map(|host| format!("{host} web-* --template '{folder}/{{name}} template'\n"));
    fs::write(&rules, admitting.concat()).unwrap();
    let certificate = authority.issue(host(&address));
    let more = [
        &arguments(&certificate)[..],
        &["--admit", rules.to_str().unwrap()],
        &["--max-guests-per-certificate", "1"],
    ]
    .concat();
    let start = |more: &[&str]| Daemon::start_by(Command::new(hikkoshi()), &run, &address, more);
    let mut daemon = start(&more);
    let [one, two] = ["web-one", "web-two"].map(|name| Booted::start(&env, name));
    let [source, second] = ["source.example", "second.example"].map(|host| authority.issue(host));
    let to = |name, certificate, more: &[&'static str]| {
        [
            &[address.as_str(), "--name", name][..],
            &arguments(certificate),
            more,
        ]
        .concat()
    };

    // Nothing is pushed, so the migration stays in post-copy.
    let stay = ["--mode", "postcopy", "--background-delay", "3600000"];
    let migrate = two.migrate(&journal, &to("web-two", &source, &stay));
    let mut migrate = Program::start("migrate two", migrate);
    let two = two.started(&run);
    let watcher = SplitBrainWatcher::start(&two.source, &two.destination);
    daemon
        .program
        .wait_stderr("web-two: hikkoshi: the guest runs here now");

    // As many guests as its certificate may have, a name that is in use, and a source that does not
    // ask.
    let refused = one.migrate(&journal, &to("web-one", &source, &[]));
    let part = "this certificate has 1 of the 1 guests that can be received or awaited for it at a \
                time (--max-guests-per-certificate at the destination)";
    assert_command_refused(refused, 1, &[part]);
    let refused = one.migrate(&journal, &to("web-two", &second, &[]));
    let part = "a guest with the name web-two is invited or received already";
    assert_command_refused(refused, 1, &[part]);
    let nameless = [&[address.as_str()][..], &arguments(&source)].concat();
    let part = "the destination does not accept this kind of connection";
    assert_command_refused(one.migrate(&journal, &nameless), 1, &[part]);

    // Another certificate has its own places.
    let hybrid = ["--mode", "hybrid"];
    let moving = one.migrate(&journal, &to("web-one", &second, &hybrid));
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
    // What is needed for guests that come is not needed for those that are here.
    fs::write(&rules, "nonsense\n").unwrap();
    daemon = start(&more);
    daemon
        .program
        .wait_stderr("guest web-two: resuming its migration");
    let resume = two.migrate(&journal, &["--resume", "--background-delay", "0"]);
    let exit = Program::start("migrate --resume", resume).wait();
    two.assert_moved(&exit);
    watcher.finish();
    daemon.wait_nothing_left();
}
