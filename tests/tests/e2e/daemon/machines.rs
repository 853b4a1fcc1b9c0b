//! When the QEMUs end that a daemon has started: with their receivers, until the guest may run.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use super::fifo::{make_fifo, unblock};
use super::{Booted, Daemon, Moved, config, write_template};
use hikkoshi_lab::Vm;
use hikkoshi_tests::{
    Exit, LONG, Program, SplitBrainWatcher, TestEnv, eventually, hikkoshi, unique_address,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::process::Command;

/// A receiver is killed when its QEMU has loaded the guest, and *ready* is not recorded; when its
/// QEMU does not answer; and when *ready* is recorded and the source has not sent *commit*. The
/// first two QEMUs end, and the third one gets the guest.
#[test]
#[ignore = "several machines and engines: make test-daemon"]
fn a_machine_ends_with_its_receiver_until_it_may_run_its_guest() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let journal = env.folder().join("source");
    let daemon = Daemon::start(&run, &unique_address());
    let guest = Booted::start(&env, "one");
    let qmp = run.join("machines/one.qmp");
    let start = |machine: &str| {
        let expected = config().expect(env.lab(), machine).unwrap();
        let template = env.folder().join(machine);
        write_template(&template, &expected.command_line());
        let invitation = daemon.invitation(&template, "one", &[]);
        (expected.wait(&qmp).unwrap(), invitation)
    };
    // The rounds take a while, and then the guest is paused for as long as it takes. Compressed
    // they would be over too soon.
    let slowly = "--mode precopy --bandwidth 20M --compress off --max-downtime 60000 \
                  --retry-for 600 --to -";
    let slowly: Vec<_> = slowly.split(' ').collect();
    let migrate = |invitation: &str| {
        let command = guest.migrate(&journal, &slowly);
        Program::start_with_input("migrate", command, invitation)
    };
    let stays = |mut migrate: Program| {
        migrate.wait().assert(1, &["runs at the source"]);
        daemon.wait_nothing_left();
        assert_eq!(guest.source.status().unwrap(), "running");
    };
    let ended = "guest one: its QEMU, which has not got the guest, was ended";

    // The receiver waits for a reader of its journal, when it wants to write that it is ready.
    let block = |there: &Vm| {
        let begin = format!("destination-{}-", there.pid());
        let blocked = daemon.wait_file(&begin, ".lock").with_extension("new");
        make_fifo(&blocked);
        blocked
    };

    let (there, invitation) = start("loaded");
    let blocked = block(&there);
    let migrating = migrate(&invitation);
    wait_status(&there, "paused");
    kill_process(daemon.receivers("one")[0], Signal::KILL).unwrap();
    there.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr(ended);
    fs::remove_file(&blocked).unwrap();
    stays(migrating);

    let (there, invitation) = start("silent");
    let migrating = migrate(&invitation);
    stop_in_precopy(&there, &run);
    wait_status(&guest.source, "paused");
    kill_process(daemon.receivers("one")[0], Signal::KILL).unwrap();
    there.wait_exit(LONG).unwrap();
    daemon.program.wait_stderr_count(ended, 2);
    stays(migrating);

    let invitation = daemon.invitation(&guest.template, "one", &[]);
    let mut migrating = migrate(&invitation);
    let guest = guest.started(&run);
    let watcher = SplitBrainWatcher::start(&guest.source, &guest.destination);
    let blocked = block(&guest.destination);
    wait_status(&guest.destination, "paused");
    migrating.signal(Signal::STOP);
    let receiver = daemon.receivers("one")[0];
    unblock(receiver, &blocked);
    let begin = format!("destination-{}-", guest.destination.pid());
    daemon.wait_file(&begin, ".json");
    wait_unread(&daemon.address);
    kill_process(receiver, Signal::KILL).unwrap();
    daemon
        .program
        .wait_stderr("guest one: resuming its migration");
    migrating.signal(Signal::CONT);
    guest.assert_moved(&migrating.wait());
    watcher.finish();
    daemon.wait_nothing_left();
}

/// The daemon and a receiver are killed. An operator moves another guest to the QEMU of that
/// receiver, by another path of its socket: no daemon ends it, before or after that. Then its name
/// is used for a guest whose source is lost, and that is given up as the documents say.
#[test]
#[ignore = "several machines and engines: make test-daemon"]
fn an_operator_takes_over_a_machine_and_gives_up_a_guest() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let journal = env.folder().join("source");
    let mut daemon = Daemon::start(&run, &unique_address());
    let guest = Booted::start(&env, "one");
    daemon.invitation(&guest.template, "one", &[]);
    let guest = guest.started(&run);
    daemon.program.kill();
    kill_process(daemon.receivers("one")[0], Signal::KILL).unwrap();
    let link = env.folder().join("link");
    std::os::unix::fs::symlink(&run, &link).unwrap();
    let mut receive = Command::new(hikkoshi());
    let listen = format!("unix:{}", env.folder().join("own").display());
    receive.args(["receive", "--listen", &listen, "--journal"]);
    receive
        .arg(&run)
        .arg("--qmp")
        .arg(link.join("machines/one.qmp"));
    let mut receive = Program::start("receive", receive);
    receive.wait_stderr("waiting for a guest");
    daemon = Daemon::start(&run, &daemon.address);
    let migrate = guest.migrate(&journal, &["--mode", "precopy", &listen]);
    let moved = Program::start("migrate", migrate).wait();
    guest.assert_moved(&moved);
    receive.wait().assert(0, &[]);
    assert!(!run.join("machines/one.waiting").exists());
    daemon.program.kill();
    daemon = Daemon::start(&run, &daemon.address);
    daemon.wait_nothing_left();
    assert_eq!(guest.destination.status().unwrap(), "running");
    assert!(!daemon.program.stderr().contains("was ended"));

    let lost = Moved::start(&env, &daemon, "lost", &[]);
    // Nothing is pushed, so the migration stays in post-copy.
    let stay = "--background-delay 3600000 --mode postcopy --to -";
    let stay: Vec<_> = stay.split(' ').collect();
    let migrate = lost.migrate(&journal, &stay);
    let mut migrate = Program::start_with_input("migrate lost", migrate, &lost.invitation);
    daemon
        .program
        .wait_stderr("lost: hikkoshi: the guest runs here now");
    migrate.kill();
    signal(&lost.source, Signal::KILL);
    daemon.program.kill();
    kill_process(daemon.receivers("lost")[0], Signal::KILL).unwrap();
    give_up(&run, "lost", &[]).assert(3, &["--other-side-is-lost"]);
    assert!(lost.destination.exit_status().is_none());
    give_up(&run, "lost", &["--other-side-is-lost"]).assert(4, &[]);
    lost.destination.wait_exit(LONG).unwrap();
    let daemon = Daemon::start(&run, &daemon.address);
    daemon.wait_nothing_left();
}

/// `migrate` is killed when its destination is ready, and its guard resumes the guest: no source
/// comes back for the one here. It is given up as the documents say, its QEMU ends, and the guest
/// is moved by the same name.
#[test]
#[ignore = "several machines and engines: make test-daemon"]
fn a_guest_that_its_source_has_kept_is_given_up() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let journal = env.folder().join("source");
    let daemon = Daemon::start(&run, &unique_address());
    let guest = Booted::start(&env, "kept");
    let expected = config().expect(env.lab(), "first").unwrap();
    let template = env.folder().join("first");
    write_template(&template, &expected.command_line());
    let invitation = daemon.invitation(&template, "kept", &[]);
    let qmp = run.join("machines/kept.qmp");
    let there = expected.wait(&qmp).unwrap();
    let slowly = "--mode precopy --bandwidth 20M --max-downtime 60000 --to -";
    let command = guest.migrate(&journal, &slowly.split(' ').collect::<Vec<_>>());
    let mut migrating = Program::start_with_input("migrate", command, &invitation);
    let begin = format!("destination-{}-", there.pid());
    let blocked = daemon.wait_file(&begin, ".lock").with_extension("new");
    make_fifo(&blocked);
    wait_status(&there, "paused");
    migrating.signal(Signal::STOP);
    unblock(daemon.receivers("kept")[0], &blocked);
    daemon.wait_file(&begin, ".json");
    wait_unread(&daemon.address);
    migrating.kill();
    wait_status(&guest.source, "running");
    daemon
        .program
        .wait_stderr("guest kept: its migration is not finished");

    let kept = "the guest is here and does not run, and its source may have kept it";
    let withdrawn = Program::start("withdraw", daemon.invite(&["--withdraw", "kept"])).wait();
    withdrawn.assert(1, &[kept, "Giving up a guest"]);
    let path = template.to_str().unwrap();
    let again = daemon.invite(&["--template", path, "--name", "kept"]);
    let again = Program::start("invite", again).wait();
    again.assert(1, &[kept, "Giving up a guest"]);

    let mut daemon = daemon;
    daemon.program.kill();
    for receiver in daemon.receivers("kept") {
        kill_process(receiver, Signal::KILL).unwrap();
    }
    give_up(&run, "kept", &[]).assert(1, &["never will", "was started for it was ended"]);
    there.wait_exit(LONG).unwrap();
    give_up(&run, "kept", &["--other-side-is-lost"]).assert(1, &["never will"]);

    let daemon = Daemon::start(&run, &daemon.address);
    daemon.wait_nothing_left();
    let invitation = daemon.invitation(&guest.template, "kept", &[]);
    let migrate = guest.migrate(&journal, &["--to", "-"]);
    let mut migrate = Program::start_with_input("migrate", migrate, &invitation);
    let guest = guest.started(&run);
    guest.assert_moved(&migrate.wait());
    daemon.wait_nothing_left();
}

/// The QEMU of a guest that is given up has ended, and another one has its socket: that is not the
/// guest's, and is left alone.
#[test]
#[ignore = "several machines and engines: make test-daemon"]
fn another_machine_at_the_same_socket_is_not_ended() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let journal = env.folder().join("source");
    let mut daemon = Daemon::start(&run, &unique_address());
    let guest = Moved::start(&env, &daemon, "kept", &[]);
    let slowly = "--mode precopy --bandwidth 20M --max-downtime 60000 --to -";
    let command = guest.migrate(&journal, &slowly.split(' ').collect::<Vec<_>>());
    let mut migrating = Program::start_with_input("migrate", command, &guest.invitation);
    let there = &guest.destination;
    let begin = format!("destination-{}-", there.pid());
    let blocked = daemon.wait_file(&begin, ".lock").with_extension("new");
    make_fifo(&blocked);
    wait_status(there, "paused");
    migrating.signal(Signal::STOP);
    unblock(daemon.receivers("kept")[0], &blocked);
    daemon.wait_file(&begin, ".json");
    wait_unread(&daemon.address);
    daemon.program.kill();
    for receiver in daemon.receivers("kept") {
        kill_process(receiver, Signal::KILL).unwrap();
    }
    migrating.kill();
    there.kill();

    let expected = config().expect(env.lab(), "other").unwrap();
    let template = env.folder().join("other");
    write_template(&template, &expected.command_line());
    let mut receive = Command::new(hikkoshi());
    let listen = format!("unix:{}", env.folder().join("own").display());
    receive.args(["receive", "--listen", &listen, "--name", "kept"]);
    receive.arg("--template").arg(&template);
    receive.arg("--journal").arg(&run);
    let mut receive = Program::start("receive", receive);
    let other = expected.wait(&run.join("machines/kept.qmp")).unwrap();
    receive.wait_stderr("waiting for a guest");
    receive.kill();
    let file = daemon.wait_file(&begin, ".json");
    let give_up = |more: &[&str]| {
        let mut command = Command::new(hikkoshi());
        command
            .arg("receive")
            .arg(format!("--resume={}", file.display()));
        command.arg("--give-up").args(more);
        Program::start("give up", command).wait()
    };
    give_up(&[]).assert(1, &["never will"]);
    give_up(&["--other-side-is-lost"]).assert(1, &["never will"]);
    assert!(!run.join("machines/kept.waiting").exists());
    assert_eq!(other.status().unwrap(), "inmigrate");
}

/// Gives up the guest of this machine, with more arguments.
fn give_up(run: &Path, name: &str, more: &[&str]) -> Exit {
    let mut command = Command::new(hikkoshi());
    command
        .args(["receive", "--resume", "--give-up"])
        .args(more);
    command
        .arg("--qmp")
        .arg(run.join(format!("machines/{name}.qmp")));
    command.arg("--journal").arg(run);
    Program::start("give up", command).wait()
}

/// Waits until the other end of a connection to this address has not read all that was sent to it.
fn wait_unread(address: &str) {
    let address: SocketAddrV4 = address.parse().unwrap();
    // As in /proc/net/tcp, see proc_net(5).
    let ip = u32::from_ne_bytes(address.ip().octets());
    let peer = format!("{ip:08X}:{:04X}", address.port());
    eventually("a message to the source", || {
        let all = fs::read_to_string("/proc/net/tcp").unwrap();
        let unread = all.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[2] == peer && !fields[4].ends_with(":00000000")
        });
        unread.then_some(()).ok_or(all)
    });
}

fn signal(vm: &Vm, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(vm.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn wait_status(vm: &Vm, status: &str) {
    eventually(status, || match vm.status().unwrap() {
        is if is == status => Ok(()),
        other => Err(other),
    });
}

/// Stops the destination's QEMU in pre-copy, when its receiver has no question for it: the guest is
/// not loaded then.
fn stop_in_precopy(there: &Vm, run: &Path) {
    eventually("pre-copy", || {
        let mut status = Command::new(hikkoshi());
        status.args(["status", "--json", "--journal"]).arg(run);
        let shown = String::from_utf8(status.output().unwrap().stdout).unwrap();
        let text: String = shown.split_whitespace().collect();
        match text.contains("\"phase\":\"precopy\"") {
            true => Ok(()),
            false => Err(shown),
        }
    });
    signal(there, Signal::STOP);
}
