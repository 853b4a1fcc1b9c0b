//! `migrate --ssh` starts `receive` at the destination.
//!
//! Mostly a script takes the place of ssh ([`RemoteShell`]): it runs the command line in the
//! destination's network namespace.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use crate::daemon::{Booted, write_template};
use hikkoshi_account::Side;
use hikkoshi_lab::{HostPair, Vm, VmConfig, Workload};
use hikkoshi_tests::{
    Exit, Guest, JsonReport, LONG, Program, QemuState, RemoteShell, SplitBrainWatcher, Sshd,
    TestEnv, assert_command_refused, copy_hikkoshi, eventually, hikkoshi, log,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Two hosts, a guest on the first one, and a QEMU on the other one that waits for it.
struct Hosts<'e> {
    env: &'e TestEnv,
    line: HostPair,
    guest: Guest<'e>,
    destination: Arc<Vm>,
    /// Paths at the destination, with characters that a shell treats specially.
    hikkoshi: PathBuf,
    qmp: PathBuf,
    journals: [PathBuf; 2],
}

impl<'e> Hosts<'e> {
    fn start(env: &'e TestEnv) -> Self {
        let line = HostPair::new(None).unwrap();
        let workload = Workload::verify(48).rate(8000).option("every_ms", 200);
        let config = VmConfig::new().workload(workload);
        let guest = Guest::boot(env, config.namespace(line.source()));
        let config = guest.config().clone().namespace(line.destination());
        let destination = config
            .console(guest.vm().console().clone())
            .incoming()
            .start(env.lab(), "there")
            .unwrap();
        let folder = env.folder().join("it's a \"folder\" with $HOME & more");
        fs::create_dir(&folder).unwrap();
        let [program, qmp] = ["hik koshi", "qmp"].map(|name| folder.join(name));
        symlink(self::hikkoshi(), &program).unwrap();
        symlink(destination.qmp_path(), &qmp).unwrap();
        Self {
            env,
            line,
            guest,
            destination: Arc::new(destination),
            hikkoshi: program,
            qmp,
            journals: ["here", "there"].map(|side| env.folder().join(side)),
        }
    }

    /// A script in the place of ssh.
    fn shell(&self) -> RemoteShell {
        let network = format!("--net=/run/netns/{}", self.line.destination().name());
        RemoteShell::new(self.env.folder(), &["nsenter", &network])
    }

    /// `hikkoshi migrate --ssh` by the remote shell `rsh`, with more arguments.
    fn migrate(&self, rsh: &str, more: &[&str]) -> Command {
        self.migrate_from(self.guest.vm().qmp_path(), rsh, more)
    }

    fn migrate_from(&self, qmp: &Path, rsh: &str, more: &[&str]) -> Command {
        let mut command = self.line.source().command(hikkoshi());
        let host = format!("root@{}", HostPair::DESTINATION);
        command.args(["migrate", "--ssh", &host, "--rsh", rsh]);
        // Both kinds of quotation marks are in the path, so neither can group all of it.
        let program = self.hikkoshi.to_str().unwrap().replace('\'', "'\"'\"'");
        let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        // sshd does not pass on the environment, and sudo removes what sshd has set.
        let program = format!("env -u SSH_CONNECTION 'LD_LIBRARY_PATH={libraries}' '{program}'");
        command.args(["--remote-hikkoshi", &program]);
        command.arg("--remote-qmp").arg(&self.qmp);
        let journal = self.journals[1].display();
        command.arg(format!("--remote-option=--journal={journal}"));
        command.arg("--journal").arg(&self.journals[0]);
        command.arg("--qmp").arg(qmp);
        command.arg("--json").arg(self.report());
        command.args(more);
        command
    }

    fn report(&self) -> PathBuf {
        self.env.folder().join("migrate.json")
    }

    /// Which sides have a journal, the source's first.
    fn have_journals(&self) -> [bool; 2] {
        self.journals.each_ref().map(|folder| {
            let files = fs::read_dir(folder).into_iter().flatten();
            files
                .map(|file| file.unwrap().path())
                .any(|path| path.extension().is_some_and(|end| end == "json"))
        })
    }

    /// The processes of `ssh-session` at the destination.
    fn receives(&self) -> Vec<Pid> {
        let program = self.hikkoshi.as_os_str().as_encoded_bytes();
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            let words = fs::read(path.join("cmdline")).ok()?;
            let mut words = words.split(|&byte| byte == 0);
            let found = words.next() == Some(program) && words.next() == Some(b"ssh-session");
            Pid::from_raw(found.then(|| path.file_name()?.to_str()?.parse().ok())??)
        });
        all.collect()
    }

    /// The guest is at the destination, healthy, and nothing is left of the migration.
    fn complete(mut self, exit: &Exit, what: &str) {
        exit.assert(0, &[]);
        eventually("receive to end", || match self.receives() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        });
        assert_eq!(self.have_journals(), [false; 2], "{exit:?}");
        assert_eq!(self.guest.vm().status().unwrap(), "paused");
        assert_eq!(self.destination.status().unwrap(), "running");
        for vm in [self.guest.vm(), &self.destination] {
            QemuState::assert_no_userfaultfd(vm);
        }
        self.guest.set_vm(Arc::clone(&self.destination));
        self.guest.assert_healthy();
        log(format!("by ssh, {what}: the guest is healthy"));
    }
}

/// What every migration with a script needs: the namespaces have no default route.
const LISTEN: [&str; 2] = ["--remote-listen", "10.77.0.2:0"];

/// The host as messages name it.
const HOST: &str = "root@10.77.0.2: ";

/// Nothing is pushed, so the migration stays in post-copy.
const STAY: [&str; 4] = ["--mode", "postcopy", "--background-delay", "3600000"];

/// A migration that fails before it has begun leaves no `receive` behind. The next one moves the
/// guest, and shows the destination's messages, but not the invitation.
#[test]
fn a_guest_is_moved_by_ssh() {
    let env = TestEnv::new();
    let hosts = Hosts::start(&env);
    let shell = hosts.shell();
    let rsh = shell.command();
    let failing = hosts.migrate_from(Path::new("/nowhere/qmp"), &rsh, &LISTEN);
    let exit = Program::start("migrate --ssh", failing).wait();
    let ended = [
        "/nowhere/qmp",
        &format!("{HOST}waiting for a guest at 10.77.0.2:"),
        "the session that started this command has ended, and no source has connected",
    ];
    exit.assert(1, &ended);
    assert!(hosts.receives().is_empty());

    let watcher = SplitBrainWatcher::start(hosts.guest.vm(), &hosts.destination);
    let command = hosts.migrate(&rsh, &[&LISTEN[..], &["--mode", "hybrid"]].concat());
    let exit = Program::start("migrate --ssh", command).wait();
    watcher.finish();
    let welcome = format!("{HOST}welcome");
    exit.assert(
        0,
        &[&format!("{HOST}a guest arrives from 10.77.0.1:"), &welcome],
    );
    let said = format!("{}{}{}", exit.stdout, exit.stderr, shell.commands());
    assert!(!said.contains("hikkoshi1:"), "{said}");
    assert!(said.contains("root@10.77.0.2 env -u "), "{said}");
    let report = JsonReport::read(&fs::read_to_string(hosts.report()).unwrap());
    let mib = hosts.guest.config().memory().mib();
    report.check(Side::Source, "hybrid", mib);
    hosts.complete(&exit, "hybrid");
}

/// The session is killed in post-copy: `receive` continues. Then both engines are killed, and one
/// command resumes both.
#[test]
#[ignore = "engines are killed and resumed: make test-ssh"]
fn the_end_of_the_session_in_postcopy_costs_nothing() {
    let env = TestEnv::new();
    let hosts = Hosts::start(&env);
    let shell = hosts.shell();
    let more = [&LISTEN[..], &STAY, &["--retry-for", "0"]].concat();
    let migrate = Program::start("migrate --ssh", hosts.migrate(&shell.command(), &more));
    migrate.wait_stderr(&format!("{HOST}the guest runs here now"));
    shell.kill_session();
    hosts.resume_twice(migrate, &shell.command());
}

/// A session of a real ssh ends in post-copy: its client is killed. `receive` listens at the
/// address that ssh has connected to.
#[test]
#[ignore = "a real sshd: make test-ssh"]
fn the_end_of_a_real_session_in_postcopy_costs_nothing() {
    let env = TestEnv::new();
    let hosts = Hosts::start(&env);
    let host = hosts.line.destination();
    let on_host = |program: &str| host.command(program);
    let Some(sshd) = Sshd::start(env.folder(), on_host, HostPair::DESTINATION) else {
        assert!(std::env::var_os("CI").is_none(), "build/openssh is missing");
        log("skipped: setup/setup.sh openssh was not run");
        return;
    };
    let more = [&STAY[..], &["--retry-for", "0"]].concat();
    let migrate = Program::start("migrate --ssh", hosts.migrate(&sshd.command(), &more));
    migrate.wait_stderr(&format!("{HOST}the guest runs here now"));
    Sshd::kill_client_of(&migrate);
    hosts.resume_twice(migrate, &sshd.command());
}

/// The destination's QEMU is started from a template. It ends with a session that ends before the
/// source has connected. Then a guest moves there, its receiver is killed in post-copy, and the
/// same options resume both sides.
#[test]
#[ignore = "a guest, several engines: make test-ssh"]
fn a_machine_is_started_for_the_guest() {
    let env = TestEnv::new();
    let shell = RemoteShell::new(env.folder(), &[]);
    let there = env.folder().join("there");
    let program = hikkoshi();
    let program = program.to_str().unwrap();

    let unused = VmConfig::new().expect(env.lab(), "unused").unwrap();
    let template = env.folder().join("unused template");
    write_template(&template, &unused.command_line());
    let words = [
        program,
        "ssh-session",
        "--listen=127.0.0.1:0",
        "--name=unused",
        &format!("--template={}", template.display()),
        &format!("--journal={}", there.display()),
    ];
    let line = words.map(|word| format!("'{word}'")).join(" ");
    let mut command = Command::new("sh");
    let rsh = format!("exec {} there \"$1\"", shell.command());
    command.args(["-c", &rsh, "sh", &line]);
    // Held open.
    command.stdin(Stdio::piped());
    let mut session = Program::start_as_it_is("a session", command);
    session.wait_stdout("hikkoshi1:");
    let qmp = there.join("machines/unused.qmp");
    let unused = unused.wait(&qmp).unwrap();
    shell.kill_session();
    unused.wait_exit(LONG).unwrap();
    eventually("its socket to be removed", || match qmp.exists() {
        false => Ok(()),
        true => Err(String::new()),
    });
    session.kill();

    let booted = Booted::start(&env, "web1");
    let template = env.folder().join("web1 template");
    let ssh = [
        "--ssh",
        "there",
        "--rsh",
        &shell.command(),
        "--remote-hikkoshi",
        &format!("'{program}'"),
        &format!("--remote-option=--journal={}", there.display()),
        "--remote-template",
        template.to_str().unwrap(),
        "--remote-name",
        "web1",
    ];
    let listen = ["--remote-listen", "127.0.0.1:0", "--retry-for", "0"];
    let here = env.folder().join("here");
    let command = booted.migrate(&here, &[&ssh[..], &STAY, &listen].concat());
    let mut migrate = Program::start("migrate --ssh", command);
    let moved = booted.started(&there);
    migrate.wait_stderr("there: the guest runs here now");
    let receive = receive_of(&there);
    kill_process(receive, Signal::KILL).unwrap();
    let exit = migrate.wait();
    exit.assert(3, &["--remote-template", "--remote-name web1"]);
    let resume = [&ssh[..], &["--resume", "--background-delay", "0"]].concat();
    let command = moved.migrate(&here, &resume);
    let exit = Program::start("migrate --resume --ssh", command).wait();
    exit.assert(0, &["there: the guest runs here, and pages may be missing"]);
    moved.assert_moved(&exit);
}

/// The `ssh-session` with this run folder.
fn receive_of(run: &Path) -> Pid {
    let journal = format!("--journal={}", run.display());
    let mut all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let words = fs::read(path.join("cmdline")).ok()?;
        let words: Vec<_> = words.split(|&byte| byte == 0).collect();
        let found = words.contains(&&b"ssh-session"[..]) && words.contains(&journal.as_bytes());
        Pid::from_raw(found.then(|| path.file_name()?.to_str()?.parse().ok())??)
    });
    all.next().unwrap()
}

impl Hosts<'_> {
    /// Both engines of a migration in post-copy are killed, after the session has ended.
    fn resume_twice(self, mut migrate: Program, rsh: &str) {
        let receives = self.receives();
        assert_eq!(receives.len(), 1, "{}", migrate.stderr());
        assert!(!migrate.has_exited(), "{}", migrate.stderr());
        assert_eq!(self.have_journals(), [true; 2]);

        // Resumed while the other side's engine runs.
        migrate.kill();
        migrate.wait_stderr("'hikkoshi migrate' was interrupted");
        // As from a terminal that is closed, while there is no link.
        kill_process(receives[0], Signal::HUP).unwrap();
        let resume = ["--resume", "--background-delay", "3600000"];
        let resume = self.migrate(rsh, &resume);
        let mut resumed = Program::start("migrate --resume --ssh", resume);
        resumed.wait_stderr("only this side is resumed");
        resumed.wait_stderr("reconnected to the destination");
        assert_eq!(self.receives(), receives);
        // The resumed migration can be changed, as far as one in post-copy can.
        for (words, status) in [(&["set", "--bandwidth", "500M"][..], 0), (&["cancel"], 1)] {
            let mut command = Command::new(hikkoshi());
            command.args(words).arg("--journal").arg(&self.journals[0]);
            let exit = Program::start(words[0], command).wait();
            assert_eq!(exit.code, Some(status), "{exit:?}");
        }
        // The other side's engine ends: this one reports how to resume both.
        kill_process(receives[0], Signal::KILL).unwrap();
        let exit = resumed.wait();
        exit.assert(3, &["This command does both: "]);
        let (_, line) = exit.stderr.split_once("This command does both: ").unwrap();
        let line = line.lines().next().unwrap();
        let line = format!("{line} --background-delay 0");
        let mut again = self.line.source().command("/bin/sh");
        let path = self.env.folder().join("bin");
        fs::create_dir(&path).unwrap();
        symlink(hikkoshi(), path.join("hikkoshi")).unwrap();
        let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
        again.args(["-c", &line]).env("PATH", path).current_dir("/");
        let exit = Program::start("the suggested command", again).wait();
        exit.assert(
            0,
            &[&format!(
                "{HOST}the guest runs here, and pages may be missing"
            )],
        );
        self.complete(&exit, "post-copy, session and both engines killed");
    }
}

/// systemd removes a user's runtime directory at the end of the last session: without the journal
/// in it, a guest in post-copy could not be recovered.
#[test]
fn a_journal_that_goes_with_the_session_is_refused() {
    let env = TestEnv::new();
    let program = env.folder().join("hikkoshi");
    copy_hikkoshi(&program);
    fs::set_permissions(env.folder(), Permissions::from_mode(0o755)).unwrap();
    let runtime = env.folder().join("runtime");
    let stays = env.folder().join("stays");
    for folder in [&runtime, &stays] {
        fs::create_dir(folder).unwrap();
        chown(folder, Some(65534), Some(65534)).unwrap();
    }
    let receive = |more: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(&program).arg("ssh-session");
        command.args(["--qmp", "/nowhere/qmp"]).args(more);
        command.env("XDG_RUNTIME_DIR", &runtime);
        // No user of this name lingers here.
        command.env("LOGNAME", "hikkoshi-test").stdin(Stdio::null());
        command
    };
    let parts = [
        "which is removed when this user logs out",
        "loginctl enable-linger hikkoshi-test",
        "--remote-option=--journal=DIR",
    ];
    assert_command_refused(receive(&[]), 2, &parts);
    assert_eq!(fs::read_dir(&runtime).unwrap().count(), 0);
    let named = receive(&["--journal", stays.to_str().unwrap()]);
    assert_command_refused(named, 1, &["/nowhere/qmp"]);
}

/// Without guests: what ssh or the shell there reports is shown, and where the guest is.
#[test]
#[ignore = "waits for timeouts: make test-ssh"]
fn a_receive_that_does_not_start_is_reported() {
    let migrate = |rsh: &str, more: &[&str]| {
        let mut command = Command::new(hikkoshi());
        command.args(["migrate", "--ssh", "there", "--qmp", "/nowhere/qmp"]);
        command.args(["--rsh", rsh]).args(more);
        command
    };
    // Runs the command line here.
    let local = "sh -c 'exec sh -c \"$1\"'";
    let qmp = ["--remote-qmp", "/nowhere/there"];
    let missing = [&qmp[..], &["--remote-hikkoshi", "/nowhere/hikkoshi"]].concat();
    let unchanged = "nothing was changed";
    assert_command_refused(
        migrate(local, &missing),
        1,
        &[
            "there: ",
            "/nowhere/hikkoshi",
            "--remote-hikkoshi",
            unchanged,
        ],
    );
    let program = hikkoshi();
    let found = ["--remote-hikkoshi", program.to_str().unwrap()];
    let found = [&qmp[..], &found].concat();
    assert_command_refused(
        migrate(local, &found),
        1,
        &[
            "there: ",
            "/nowhere/there",
            "without an invitation",
            unchanged,
        ],
    );
    assert_command_refused(
        migrate("sh -c 'echo refused >&2; exit 255'", &qmp),
        1,
        &["there: refused", "could not connect or log in", unchanged],
    );
    assert_command_refused(
        migrate("true", &[]),
        2,
        &["--remote-template", "--remote-qmp"],
    );
    // A resumed migration is not tried without the other side: there is no journal there.
    let folder = tempfile::tempdir().unwrap();
    let journal = format!("--remote-option=--journal={}", folder.path().display());
    let mut resume = Command::new(hikkoshi());
    resume.args(["migrate", "--ssh", "there", "--rsh", local, "--resume"]);
    resume.args(&found).arg(journal);
    let parts = [
        "there: ",
        "there is no journal",
        "starting 'hikkoshi receive --resume' on there",
        "can still be resumed",
    ];
    assert_command_refused(resume, 3, &parts);
    // With a terminal, the end of the session would not be noticed.
    let mut command = Command::new("script");
    let line = format!("{} ssh-session --qmp /q", program.display());
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let exit = Program::start("receive on a terminal", command).wait();
    assert_eq!(exit.code, Some(2), "{exit:?}");
    assert!(exit.stdout.contains("is a terminal"), "{exit:?}");
}
