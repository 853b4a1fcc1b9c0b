//! Several guests at once, and receivers that no source has reached.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::{Daemon, Moved, STRANGER, write_template};
use hikkoshi_lab::VmConfig;
use hikkoshi_tests::{
    LONG, Program, SplitBrainWatcher, TestEnv, assert_command_refused, hikkoshi, unique_address,
};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::process::Command;

/// Two guests at once. One of them stays in post-copy while invitations are refused, its receiver
/// is killed, the daemon is killed and started again, and the other guest is moved.
#[test]
#[ignore = "two guests, several engines: make test-daemon"]
fn many_guests_are_received_on_one_port() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let mut daemon = Daemon::start(&run, &unique_address());
    // A journal that cannot be read keeps nothing that is newer: not the names below.
    fs::write(run.join(STRANGER), "{}").unwrap();
    let [one, two] = ["one", "two"].map(|name| Moved::start(&env, &daemon, name, &[]));
    let journal = env.folder().join("source");
    let watchers = [&one, &two].map(|g| SplitBrainWatcher::start(&g.source, &g.destination));

    // Nothing is pushed, so the migration stays in post-copy.
    let stay = [
        "--background-delay",
        "3600000",
        "--mode",
        "postcopy",
        "--to",
        "-",
    ];
    let migrate = two.migrate(&journal, &stay);
    let mut migrate = Program::start_with_input("migrate two", migrate, &two.invitation);
    daemon
        .program
        .wait_stderr("two: hikkoshi: the guest runs here now");

    // Another secret, another key, and the invitation of a guest that has arrived.
    let (fingerprint, rest) = one.invitation.split_once('.').unwrap();
    let (_, address) = rest.split_once('@').unwrap();
    let wrong = format!("{fingerprint}.AAAAAAAAAAAAAAAAAAAAAA@{address}");
    let unknown = format!("hikkoshi1:AAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAA@{address}");
    for (invitation, part) in [
        (&wrong, "does not know the secret"),
        (&unknown, "the connection failed during the TLS handshake"),
        (&two.invitation, "used already"),
    ] {
        let refused = one.migrate(&journal, &["--to", invitation]);
        assert_command_refused(refused, 1, &[part]);
    }
    daemon
        .program
        .wait_stderr("no guest is awaited with this invitation");
    assert_eq!(one.source.status().unwrap(), "running");

    // It is shown by its name, also when another process receives it.
    let shown = || {
        let mut command = Command::new(hikkoshi());
        command.args(["status", "two", "--journal"]).arg(&run);
        let exit = Program::start("status", command).wait();
        // The journal that cannot be read may be that of any guest.
        exit.assert(3, &["its journal cannot be read"]);
        assert!(exit.stdout.contains("guest      two ("), "{}", exit.stdout);
    };
    shown();
    // The receiver is killed. The daemon starts another one.
    let receivers = daemon.receivers("two");
    assert_eq!(receivers.len(), 1);
    kill_process(receivers[0], Signal::KILL).unwrap();
    daemon
        .program
        .wait_stderr("guest two: resuming its migration");
    migrate.wait_stderr("reconnected to the destination");
    shown();

    // The daemon is killed. Its receiver continues, and the next daemon finds it.
    let receivers = daemon.receivers("two");
    daemon.program.kill();
    assert_eq!(daemon.receivers("two"), receivers);
    let address = daemon.address.clone();
    daemon = Daemon::start(&run, &address);
    assert!(!migrate.has_exited(), "{}", migrate.stderr());

    // An invitation of the daemon that was killed.
    let moved = one.migrate(&journal, &["--mode", "hybrid", "--to", "-"]);
    let exit = Program::start_with_input("migrate one", moved, &one.invitation).wait();
    one.assert_moved(&exit);
    let again = daemon.invite(&["--template", "/nowhere", "--name", "one"]);
    assert_command_refused(again, 1, &["a QEMU with this name runs already"]);

    migrate.kill();
    migrate.wait_stderr("'hikkoshi migrate' was interrupted");
    let resume = two.migrate(&journal, &["--resume", "--background-delay", "0"]);
    let exit = Program::start("migrate --resume", resume).wait();
    two.assert_moved(&exit);
    for watcher in watchers {
        watcher.finish();
    }
    daemon.wait_nothing_left();
    assert_command_refused(daemon.invite(&["--withdraw", "two"]), 1, &["is awaited"]);
    unused_receivers_end(&env, &mut daemon);
    // Those who read the daemon's messages do not see the invitations.
    let said = daemon.program.stderr();
    assert!(said.contains("receiving guests at "), "{said}");
    assert!(!said.contains("the invitation: "), "{said}");

    daemon.program.interrupt();
    daemon.program.wait().assert(0, &["migrations continue"]);
    assert!(!run.join("daemon.sock").exists());
}

/// Receivers that no source has reached: QEMU, the name and the route end with them.
fn unused_receivers_end(env: &TestEnv, daemon: &mut Daemon) {
    let template = env.folder().join("unused template");
    let qmp = daemon.run.join("machines/unused.qmp");
    let start = |daemon: &Daemon, machine: &str| {
        let expected = VmConfig::new().expect(env.lab(), machine).unwrap();
        write_template(&template, &expected.command_line());
        daemon.invitation(&template, "unused", &[]);
        expected.wait(&qmp).unwrap()
    };
    let killed = start(daemon, "killed");
    kill_process(daemon.receivers("unused")[0], Signal::KILL).unwrap();
    killed.wait_exit(LONG).unwrap();
    let ended = "guest unused: its QEMU, which has not got the guest, was ended";
    daemon.program.wait_stderr(ended);
    daemon.wait_nothing_left();

    let withdrawn = start(daemon, "withdrawn");
    let taken = daemon.invite(&["--template", "/nowhere", "--name", "unused"]);
    assert_command_refused(
        taken,
        1,
        &["a guest with the name unused is invited or received already"],
    );
    let withdraw = daemon.invite(&["--withdraw", "unused"]);
    Program::start("invite --withdraw", withdraw)
        .wait()
        .assert(0, &["the invitation was withdrawn"]);
    withdrawn.wait_exit(LONG).unwrap();
    daemon.wait_nothing_left();

    // Of a daemon before: one is withdrawn, and the next is killed.
    let restart = |daemon: &mut Daemon| {
        daemon.program.kill();
        *daemon = Daemon::start(&daemon.run, &daemon.address);
    };
    let withdrawn = start(daemon, "withdrawn-later");
    restart(daemon);
    let withdraw = daemon.invite(&["--withdraw", "unused"]);
    Program::start("invite --withdraw", withdraw)
        .wait()
        .assert(0, &[]);
    withdrawn.wait_exit(LONG).unwrap();
    daemon.wait_nothing_left();
    let killed = start(daemon, "killed-later");
    restart(daemon);
    kill_process(daemon.receivers("unused")[0], Signal::KILL).unwrap();
    killed.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr(ended);
    daemon.wait_nothing_left();

    // Both are killed.
    let killed = start(daemon, "killed-first");
    daemon.program.kill();
    kill_process(daemon.receivers("unused")[0], Signal::KILL).unwrap();
    assert!(killed.exit_status().is_none());
    *daemon = Daemon::start(&daemon.run, &daemon.address);
    killed.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr(ended);
    daemon.wait_nothing_left();
}
