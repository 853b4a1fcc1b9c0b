//! One `hikkoshi daemon` receives many guests on one port.
#![allow(clippy::unwrap_used)] // a test's failure is the message

mod certificates;
mod copied_disks;
mod domains;
mod fifo;
mod inquiries;
mod machines;
mod many_guests;
mod service_manager;
mod unfinished;
mod without_guests;

use hikkoshi_lab::{ExpectedVm, GuestReport, Vm, VmConfig, Workload, template};
use hikkoshi_tests::{Exit, LONG, Program, QemuState, TestEnv, eventually, hikkoshi, log};
use rustix::process::Pid;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A journal of a process that the daemon knows nothing of.
const STRANGER: &str = "destination-1-1.json";

/// A daemon, and its run folder.
pub(crate) struct Daemon {
    pub(crate) program: Program,
    address: String,
    run: PathBuf,
}

impl Daemon {
    fn start(run: &Path, address: &str) -> Self {
        Self::start_by(Command::new(hikkoshi()), run, address, &[])
    }

    /// Starts one by a command that is hikkoshi, with more arguments.
    pub(crate) fn start_by(mut command: Command, run: &Path, address: &str, more: &[&str]) -> Self {
        command.args(["daemon", "--listen", address, "--journal"]);
        command.arg(run).args(more);
        let program = Program::start("daemon", command);
        program.wait_stderr("receiving guests at ");
        Self {
            program,
            address: address.to_owned(),
            run: run.to_owned(),
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
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
    pub(crate) fn receivers(&self, name: &str) -> Vec<Pid> {
        let run = self.run.as_os_str().as_encoded_bytes();
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            let words = fs::read(path.join("cmdline")).ok()?;
            let words: Vec<_> = words.split(|&byte| byte == 0).collect();
            let named = words
                .windows(2)
                .any(|two| two == [b"receiver", name.as_bytes()]);
            let found = named && words.contains(&run);
            Pid::from_raw(found.then(|| path.file_name()?.to_str()?.parse().ok())??)
        });
        all.collect()
    }

    /// Waits until nothing is left in the folders of journals and receivers, except results.
    pub(crate) fn wait_nothing_left(&self) {
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
            let is_journal = name.starts_with("destination-") && name != STRANGER;
            is_journal || (is_inside && !is_result)
        });
        left
    }
}

/// Writes a command line as a template.
pub(crate) fn write_template(path: &Path, words: &[OsString]) {
    fs::write(path, template(words)).unwrap();
}

/// A guest, and a template for the machine that it moves to.
pub(crate) struct Booted {
    name: &'static str,
    source: Arc<Vm>,
    expected: ExpectedVm,
    pub(crate) template: PathBuf,
}

/// The machine of these guests.
fn config() -> VmConfig {
    VmConfig::new().workload(Workload::verify(32).rate(8000))
}

impl Booted {
    /// Boots the guest. The name of the template is that of the guest, and ` template`.
    pub(crate) fn start(env: &TestEnv, name: &'static str) -> Self {
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
    pub(crate) fn migrate(&self, journal: &Path, more: &[&str]) -> Command {
        migrate(&self.source, journal, more)
    }

    /// Waits until the daemon with this run folder has started the machine.
    pub(crate) fn started(self, run: &Path) -> Moved {
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
pub(crate) struct Moved {
    name: &'static str,
    pub(crate) source: Arc<Vm>,
    pub(crate) destination: Arc<Vm>,
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

    pub(crate) fn migrate(&self, journal: &Path, more: &[&str]) -> Command {
        migrate(&self.source, journal, more)
    }

    /// The guest is at the destination, and has checked its memory there.
    pub(crate) fn assert_moved(&self, exit: &Exit) {
        exit.assert(0, &[]);
        assert_eq!(self.source.status().unwrap(), "paused");
        assert_eq!(self.destination.status().unwrap(), "running");
        let verdict = self.destination.sweep(LONG).unwrap();
        assert!(verdict.ok && verdict.bad == 0, "{verdict:?}");
        let lines = self.destination.console().lines();
        let bad = lines
            .iter()
            .find(|line| matches!(line.report, GuestReport::Bad(_)));
        assert!(bad.is_none(), "{bad:?}");
        QemuState::assert_no_userfaultfd(&self.destination);
        log(format!("{}: moved by the daemon, and healthy", self.name));
    }
}
