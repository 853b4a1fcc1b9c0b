//! One `receive --daemon` receives many guests on one port.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_lab::{ExpectedVm, Report, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Exit, LONG, Program, QemuState, SplitBrainWatcher, TestEnv, assert_command_refused, eventually,
    hikkoshi, log, unique_address,
};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A daemon, and its run folder.
pub(super) struct Daemon {
    pub(super) program: Program,
    address: String,
    run: PathBuf,
}

impl Daemon {
    fn start(run: &Path, address: &str) -> Self {
        Self::start_by(Command::new(hikkoshi()), run, address, &[])
    }

    /// Starts one by a command that is hikkoshi, with more arguments.
    pub(super) fn start_by(mut command: Command, run: &Path, address: &str, more: &[&str]) -> Self {
        command.args(["receive", "--daemon", "--listen", address, "--journal"]);
        command.arg(run).args(more);
        let program = Program::start("receive --daemon", command);
        program.wait_stderr("receiving guests at ");
        Self {
            program,
            address: address.to_owned(),
            run: run.to_owned(),
        }
    }

    /// Where it listens.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// `hikkoshi invite` with these arguments.
    fn invite(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(hikkoshi());
        command.arg("invite").args(arguments);
        command.arg("--journal").arg(&self.run);
        command
    }

    /// The invitation for a guest of this name and template.
    fn invitation(&self, template: &Path, name: &str, more: &[&str]) -> String {
        let template = template.to_str().unwrap();
        let invite = self.invite(&[&["--template", template, "--name", name], more].concat());
        let invited = Program::start("invite", invite).wait();
        invited.assert(0, &[&format!("guest {name}: ")]);
        let invitation = invited.stdout.trim().to_owned();
        assert!(invitation.ends_with(&format!("@{}", self.address)));
        assert!(!self.program.stderr().contains("hikkoshi1:"));
        invitation
    }

    /// The path of a file in the run folder whose name begins and ends so, once it is there.
    fn wait_file(&self, begin: &str, end: &str) -> PathBuf {
        let mut found = None;
        eventually(&format!("a file {begin}*{end}"), || {
            let files = fs::read_dir(&self.run).unwrap();
            found = files.map(|file| file.unwrap().path()).find(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with(begin) && name.ends_with(end)
            });
            found
                .is_some()
                .then_some(())
                .ok_or_else(|| "none".to_owned())
        });
        found.unwrap()
    }

    /// The processes that receive this guest.
    pub(super) fn receivers(&self, name: &str) -> Vec<Pid> {
        let run = self.run.as_os_str().as_encoded_bytes();
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            let words = fs::read(path.join("cmdline")).ok()?;
            let words: Vec<_> = words.split(|&byte| byte == 0).collect();
            let named = words
                .windows(2)
                .any(|two| two == [b"--receiver", name.as_bytes()]);
            let found = named && words.contains(&run);
            Pid::from_raw(found.then(|| path.file_name()?.to_str()?.parse().ok())??)
        });
        all.collect()
    }

    /// Waits until nothing is left in the folders of journals and receivers, except results.
    pub(super) fn wait_nothing_left(&self) {
        eventually("nothing to be left", || match self.left() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        });
    }

    fn left(&self) -> Vec<PathBuf> {
        let folders = [self.run.clone(), self.run.join("receivers")];
        let files = folders
            .iter()
            .flat_map(|folder| fs::read_dir(folder).unwrap());
        let mut left: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        left.retain(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_result =
                path.parent().unwrap().ends_with("receivers") && name.ends_with(".json");
            let is_inside = path.parent() == Some(&folders[1]);
            name.starts_with("destination-") || (is_inside && !is_result)
        });
        left
    }
}

/// Writes a command line as a template.
pub(super) fn write_template(path: &Path, words: &[OsString]) {
    let words: Vec<_> = words
        .iter()
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    fs::write(path, format!("# a test's\n{}\n", words.join(" \\\n"))).unwrap();
}

/// A guest, and a template for the machine that it moves to.
pub(super) struct Booted {
    name: &'static str,
    source: Arc<Vm>,
    expected: ExpectedVm,
    pub(super) template: PathBuf,
}

/// The machine of these guests.
fn config() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(8000))
}

impl Booted {
    /// Boots the guest. The name of the template is that of the guest, and ` template`.
    pub(super) fn start(env: &TestEnv, name: &'static str) -> Self {
        let config = config();
        let source = config.start(env.lab(), &format!("{name}-here")).unwrap();
        source.wait_ready().unwrap();
        let there = config.console(source.console().clone());
        let expected = there.expect(env.lab(), &format!("{name}-there")).unwrap();
        let template = env.folder().join(format!("{name} template"));
        write_template(&template, &expected.command_line());
        Self {
            name,
            source: Arc::new(source),
            expected,
            template,
        }
    }

    /// `hikkoshi migrate` for the guest, with more arguments.
    pub(super) fn migrate(&self, journal: &Path, more: &[&str]) -> Command {
        migrate(&self.source, journal, more)
    }

    /// Waits until the daemon with this run folder has started the machine.
    pub(super) fn started(self, run: &Path) -> Moved {
        let qmp = run.join("machines").join(format!("{}.qmp", self.name));
        Moved {
            name: self.name,
            source: self.source,
            destination: Arc::new(self.expected.wait(&qmp).unwrap()),
            invitation: String::new(),
        }
    }
}

fn migrate(source: &Vm, journal: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(hikkoshi());
    command
        .arg("migrate")
        .args(more)
        .arg("--journal")
        .arg(journal);
    command.arg("--qmp").arg(source.qmp_path());
    command
}

/// A guest, and the machine that the daemon has started for it.
pub(super) struct Moved {
    name: &'static str,
    pub(super) source: Arc<Vm>,
    pub(super) destination: Arc<Vm>,
    invitation: String,
}

impl Moved {
    /// Boots the guest, and asks for an invitation for it, with more arguments.
    fn start(env: &TestEnv, daemon: &Daemon, name: &'static str, more: &[&str]) -> Self {
        let booted = Booted::start(env, name);
        let invitation = daemon.invitation(&booted.template, name, more);
        Self {
            invitation,
            ..booted.started(&daemon.run)
        }
    }

    pub(super) fn migrate(&self, journal: &Path, more: &[&str]) -> Command {
        migrate(&self.source, journal, more)
    }

    /// The guest is at the destination, and has checked its memory there.
    pub(super) fn assert_moved(&self, exit: &Exit) {
        exit.assert(0, &[]);
        assert_eq!(self.source.status().unwrap(), "paused");
        assert_eq!(self.destination.status().unwrap(), "running");
        let verdict = self.destination.sweep(LONG).unwrap();
        assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
        let lines = self.destination.console().lines();
        let bad = lines
            .iter()
            .find(|line| matches!(line.report, Report::Bad(_)));
        assert!(bad.is_none(), "{bad:?}");
        eventually("no userfaultfd", || {
            let state = QemuState::of(&self.destination);
            match state.has_no_userfaultfd() {
                true => Ok(()),
                false => Err(format!("{state:?}")),
            }
        });
        log(format!("{}: moved by the daemon, and healthy", self.name));
    }
}

/// Two guests at once. One of them stays in post-copy while invitations are refused, its receiver
/// is killed, the daemon is killed and started again, and the other guest is moved.
#[test]
#[ignore = "two guests, several engines: make test-daemon"]
fn many_guests_are_received_on_one_port() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let mut daemon = Daemon::start(&run, &unique_address());
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
        exit.assert(0, &[]);
        assert!(exit.stdout.contains("guest      two\n"), "{}", exit.stdout);
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

    daemon.program.interrupt();
    daemon.program.wait().assert(0, &["migrations continue"]);
    assert!(!run.join("receive.sock").exists());
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
        &["a guest with the name unused is received already"],
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
    // The rounds take a while, and then the guest is paused for as long as it takes.
    let slowly = "--mode precopy --bandwidth 20M --max-downtime 60000 --retry-for 600 --to -";
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
    let give_up = |more: &[&str]| {
        let mut command = Command::new(hikkoshi());
        command
            .args(["receive", "--resume", "--give-up"])
            .args(more);
        command.arg("--qmp").arg(run.join("machines/lost.qmp"));
        command.arg("--journal").arg(&run);
        Program::start("give up", command).wait()
    };
    give_up(&[]).assert(3, &["--other-side-is-lost"]);
    assert!(lost.destination.exit_status().is_none());
    give_up(&["--other-side-is-lost"]).assert(4, &[]);
    lost.destination.wait_exit(LONG).unwrap();
    let daemon = Daemon::start(&run, &daemon.address);
    daemon.wait_nothing_left();
}

/// A process that opens this file waits until another one reads it.
fn make_fifo(path: &Path) {
    let mut command = Command::new("mkfifo");
    assert!(command.arg(path).status().unwrap().success());
}

/// Waits until a thread of the process waits there.
fn wait_blocked(process: Pid) {
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    eventually("a thread that opens the journal", || {
        let mut threads = fs::read_dir(&threads).unwrap();
        let waits = threads.any(|thread| {
            let place = fs::read_to_string(thread.unwrap().path().join("wchan"));
            place.is_ok_and(|place| place == "wait_for_partner")
        });
        waits.then_some(()).ok_or_else(|| "none".to_owned())
    });
}

/// The process opens the file again, which is an ordinary one now.
fn unblock(process: Pid, fifo: &Path) {
    fs::remove_file(fifo).unwrap();
    for signal in [Signal::STOP, Signal::CONT] {
        kill_process(process, signal).unwrap();
    }
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

/// The receiver has ended, and no other process has resumed the migration: its name is not free,
/// and its source can reach it again, also when its journal could not be read for a while, and when
/// the guest has all of its pages.
#[test]
#[ignore = "several engines: make test-daemon"]
fn an_unfinished_migration_keeps_its_name_and_its_route() {
    let env = TestEnv::new();
    let run = env.folder().join("run");
    let mut daemon = Daemon::start(&run, &unique_address());
    let option = ["--receive-option=--retry-for=0"];
    let guest = Moved::start(&env, &daemon, "two", &option);
    let journal = env.folder().join("source");
    let watcher = SplitBrainWatcher::start(&guest.source, &guest.destination);
    // Nothing is pushed, so the migration stays in post-copy.
    let stay = "--background-delay 3600000 --mode postcopy --to -";
    let stay: Vec<_> = stay.split(' ').collect();
    let migrate = guest.migrate(&journal, &stay);
    let mut migrate = Program::start_with_input("migrate", migrate, &guest.invitation);
    daemon
        .program
        .wait_stderr("two: hikkoshi: the guest runs here now");
    let is_taken = |daemon: &Daemon| {
        let again = daemon.invite(&["--template", "/nowhere", "--name", "two"]);
        assert_command_refused(again, 1, &["a guest with the name two"]);
        let withdraw = daemon.invite(&["--withdraw", "two"]);
        assert_command_refused(withdraw, 1, &[]);
    };
    is_taken(&daemon);

    // As that of another version.
    let file = daemon.wait_file("destination-", ".json");
    let content = fs::read(&file).unwrap();
    fs::write(&file, "{}").unwrap();
    kill_process(daemon.receivers("two")[0], Signal::KILL).unwrap();
    let unreadable = "a journal cannot be read";
    daemon.program.wait_stderr(unreadable);
    daemon
        .program
        .wait_stderr("guest two: its receiver was killed");
    is_taken(&daemon);
    daemon.program.kill();
    daemon = Daemon::start(&run, &daemon.address.clone());
    daemon.program.wait_stderr(unreadable);
    is_taken(&daemon);
    fs::write(&file, content).unwrap();
    let resuming = "guest two: resuming its migration";
    daemon.program.wait_stderr(resuming);
    migrate.wait_stderr("reconnected to the destination");

    // It does not wait for its source.
    migrate.kill();
    migrate.wait_stderr("'hikkoshi migrate' was interrupted");
    daemon
        .program
        .wait_stderr("guest two: its migration is not finished");
    is_taken(&daemon);
    daemon.program.wait_stderr_count(resuming, 2);

    // All pages arrive, and the source is killed before it knows that.
    let resume = ["--resume", "--background-delay", "0"];
    let resume = || Program::start("migrate --resume", guest.migrate(&journal, &resume));
    let blocked = file.with_extension("new");
    make_fifo(&blocked);
    let mut killed = resume();
    let receiver = daemon.receivers("two")[0];
    wait_blocked(receiver);
    killed.signal(Signal::STOP);
    unblock(receiver, &blocked);
    daemon.program.wait_stderr("guest two: received");
    killed.kill();
    is_taken(&daemon);
    daemon.program.wait_stderr_count(resuming, 3);
    guest.assert_moved(&resume().wait());
    watcher.finish();
    daemon.wait_nothing_left();
}

/// The socket of a service manager, and what `invite` reports. Without guests.
#[test]
fn a_daemon_takes_the_socket_of_a_service_manager() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = Command::new("sh");
    let words = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    command.args(["-c", words, "sh"]).arg(hikkoshi());
    command.args(["receive", "--daemon", "--journal"]).arg(&run);
    let mut program = start_with_socket(command, listener);
    program.wait_stderr(&format!("receiving guests at {address}"));
    let daemon = |arguments: &[&str]| {
        let mut command = Command::new(hikkoshi());
        command
            .arg("invite")
            .args(arguments)
            .arg("--journal")
            .arg(&run);
        command
    };
    let template = folder.path().join("template");
    fs::write(&template, "sh -c 'echo no such machine >&2; exit 1'").unwrap();
    let template = template.to_str().unwrap();
    for (arguments, part) in [
        (["--qmp", "/nowhere/qmp"], "/nowhere/qmp"),
        (["--template", "/nowhere/template"], "/nowhere/template"),
        (["--template", template], "no such machine"),
    ] {
        assert_command_refused(daemon(&arguments), 1, &[part]);
    }
    let nobody = "no guest with the name nobody is awaited";
    assert_command_refused(daemon(&["--withdraw", "nobody"]), 1, &[nobody]);
    // An `invite` of an earlier revision.
    let mut old = UnixStream::connect(run.join("receive.sock")).unwrap();
    old.write_all(b"{\"name\":null}\n").unwrap();
    let mut answer = String::new();
    old.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("different versions"), "{answer}");
    let options = ["--qmp", "/q", "--receive-option=--no-such-option"];
    assert_command_refused(daemon(&options), 1, &[]);
    // A peer that is not hikkoshi.
    let mut other = TcpStream::connect(address).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(other.read(&mut [0]), Ok(0) | Err(_)));
    program.wait_stderr("the peer does not use TLS");
    // A second daemon in the same folder.
    let mut second = Command::new(hikkoshi());
    second.args([
        "receive",
        "--daemon",
        "--listen",
        "127.0.0.1:0",
        "--journal",
    ]);
    second.arg(&run);
    assert_command_refused(second, 2, &["another 'hikkoshi receive --daemon'"]);
    program.interrupt();
    program.wait().assert(0, &[]);
    assert_command_refused(daemon(&["--qmp", "/q"]), 2, &["receive --daemon"]);
    let full = ["--max-guests", "0"];
    let full = Daemon::start_by(Command::new(hikkoshi()), &run, &unique_address(), &full);
    let part = "0 guests are received or awaited, as many as --max-guests allows";
    assert_command_refused(full.invite(&["--qmp", "/q"]), 1, &[part]);
}

/// Starts a program that has the listener as its standard input.
fn start_with_socket(mut command: Command, listener: TcpListener) -> Program {
    command.stdin(OwnedFd::from(listener));
    Program::start_as_it_is("receive --daemon", command)
}
