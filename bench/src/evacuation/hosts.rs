//! The host that is emptied, and those that the guests go to.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hikkoshi_lab::{
    CertificateAuthority, ExpectedVm, Lab, RunningProgram, SharedLine, StandardError, Vm, template,
};

use super::guests::Kind;
use crate::error::BenchError;
use crate::plan::NetworkKind;

/// Hosts that guests go to.
const DESTINATIONS: u8 = 3;
/// The line from the source, which all moves share.
const LINE: NetworkKind = NetworkKind::Gbit(1);
/// Where the daemons listen.
const PORT: u16 = 7000;
/// How long a daemon may take until it listens.
const SOON: Duration = Duration::from_secs(30);
/// How long the guests may take until they work.
const BOOT: Duration = Duration::from_secs(180);
/// How long they work before they are moved.
const WARM_UP: Duration = Duration::from_millis(1500);

/// The run folders of all hosts: on a tmpfs, as /run is on a host with systemd. Removed on drop.
#[derive(Debug)]
struct RunFolders(PathBuf);

impl RunFolders {
    fn new() -> Result<Self, BenchError> {
        let folder: PathBuf = format!("/dev/shm/hikkoshi-bench-{}", std::process::id()).into();
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&folder).map_err(|source| BenchError::File {
            doing: "making",
            path: folder.clone(),
            source,
        })?;
        Ok(Self(folder))
    }

    fn of(&self, host: &str) -> PathBuf {
        self.0.join(host)
    }
}

impl Drop for RunFolders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A guest that works, and the machine that it moves to.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) kind: Kind,
    pub(super) source: Vm,
    expected: ExpectedVm,
}

/// A host that guests go to.
#[derive(Debug)]
struct Destination {
    address: String,
    run: PathBuf,
    daemon: RunningProgram,
}

/// The hosts, with guests that work at the source.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) guests: Vec<Booted>,
    destinations: Vec<Destination>,
    line: SharedLine,
    authority: CertificateAuthority,
    program: PathBuf,
    runs: RunFolders,
    lab: Lab,
}

impl Hosts {
    /// Starts the daemons, boots the guests, and waits until they work.
    pub(super) fn start(program: &Path, kinds: &[Kind]) -> Result<Self, BenchError> {
        let lab = Lab::new()?;
        let Some(limit) = LINE.rate_limit() else {
            unreachable!("the line has a limit");
        };
        let line = SharedLine::new(DESTINATIONS, limit)?;
        let authority = CertificateAuthority::new(lab.folder());
        let mut guests = Vec::new();
        for &kind in kinds {
            let config = kind.config();
            let source = config.start(&lab, &format!("{}-here", kind.name))?;
            let there = config.console(source.console().clone());
            let expected = there.expect(&lab, &format!("{}-there", kind.name))?;
            let file = lab.folder().join(format!("{}.template", kind.name));
            write(&file, &template(&expected.command_line()))?;
            guests.push(Booted {
                kind,
                source,
                expected,
            });
        }
        let mut hosts = Self {
            guests,
            destinations: Vec::new(),
            line,
            authority,
            program: program.to_owned(),
            runs: RunFolders::new()?,
            lab,
        };
        for number in 1..=DESTINATIONS {
            hosts.start_daemon(number)?;
        }
        for guest in &hosts.guests {
            guest.source.wait_ready()?;
            guest.source.wait_output(BOOT)?;
        }
        std::thread::sleep(WARM_UP);
        Ok(hosts)
    }

    fn start_daemon(&mut self, number: u8) -> Result<(), BenchError> {
        let folder = self.lab.folder();
        let rules = folder.join("admit");
        let template = format!("'{}/{{name}}.template'", folder.display());
        write(&rules, &format!("source.example * --template {template}\n"))?;
        let host = SharedLine::address(number);
        let address = format!("{host}:{PORT}");
        let run = self.runs.of(&format!("host{number}"));
        let namespace = &self.line.destinations()[usize::from(number) - 1];
        let mut command = namespace.command(&self.program);
        command.args(["daemon", "--listen", &address, "--journal"]);
        command.arg(&run).arg("--admit").arg(rules);
        command.args(self.authority.issue(&host));
        let daemon = start(command)?;
        let listens = |line: &str| line.contains("receiving guests at ").then_some(());
        if daemon.stderr().wait_line(SOON, listens).is_none() {
            return Err(BenchError::Ended {
                side: "daemon",
                status: "no message that it listens".to_owned(),
                stderr: daemon.stderr().tail(12),
            });
        }
        self.destinations.push(Destination {
            address,
            run,
            daemon,
        });
        Ok(())
    }

    /// hikkoshi at the source, with what every command there has.
    pub(super) fn command(&self, subcommand: &str) -> Command {
        let mut command = self.line.source().command(&self.program);
        command.arg(subcommand).arg("--journal");
        command.arg(self.runs.of("source"));
        command.args(self.authority.issue("source.example"));
        command
    }

    /// Where guests can go.
    pub(super) fn addresses(&self) -> Vec<String> {
        let all = self.destinations.iter();
        all.map(|it| it.address.clone()).collect()
    }

    /// A file for a result.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.runs.of(&format!("{name}.json"))
    }

    /// The processes that are the bench's, beside its children.
    pub(super) fn pids(&self) -> Vec<u32> {
        let guests = self.guests.iter().map(|it| it.source.pid());
        let daemons = self.destinations.iter().map(|it| it.daemon.pid());
        guests.chain(daemons).collect()
    }

    /// The guest that has moved to this address, with the source's machine.
    pub(super) fn arrived(&self, guest: Booted, to: &str) -> Result<(Vm, Vm), BenchError> {
        let host = self.destinations.iter().find(|it| it.address == to);
        let run = host.map(|it| it.run.as_path()).unwrap_or(Path::new(""));
        let socket = run
            .join("machines")
            .join(format!("{}.qmp", guest.kind.name));
        Ok((guest.source, guest.expected.wait(&socket)?))
    }
}

/// Starts hikkoshi; its output is read.
pub(super) fn start(mut command: Command) -> Result<RunningProgram, BenchError> {
    command.stdin(Stdio::null());
    Ok(RunningProgram::start(command, StandardError::Read)?)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    fs::write(path, text).map_err(|source| BenchError::File {
        doing: "writing",
        path: path.to_owned(),
        source,
    })
}
