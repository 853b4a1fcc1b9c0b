//! How to move a guest: mode, transport, arguments, and what the relay does.

use crate::{Breakpoint, KernelFeature, MessageKind, RelayAction, Terminal, hikkoshi};
use hikkoshi_lab::{Namespace, QemuVersion, Vm, VmConfig};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Downtime limit of pre-copy, ms, unless a test sets another: enough for the dirty pages of every
/// guest here on a machine ten times slower than others. (Pre-copy continues with further rounds as
/// long as they reduce the downtime, whatever the limit.)
const MAX_DOWNTIME_MS: &str = "5000";

/// The transport of the links.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Transport {
    /// Unix sockets.
    #[default]
    Unix,
    /// TCP on loopback.
    Tcp,
    /// TCP between two network namespaces, to that address, without encryption.
    Address(String),
    /// TLS to that address, with the invitation that the destination prints.
    Invitation(String),
    /// TLS to that address, with certificates given by other arguments.
    Tls(String),
}

/// How to move a guest.
#[derive(Clone, Debug, Default)]
pub struct MigrationPlan {
    pub(crate) mode: &'static str,
    pub(crate) transport: Transport,
    pub(crate) arguments: Vec<String>,
    pub(crate) version: Option<QemuVersion>,
    pub(crate) breakpoint: Option<(Breakpoint, RelayAction)>,
    pub(crate) hosts: Option<(Namespace, Namespace)>,
    pub(crate) destination: Option<VmConfig>,
    pub(crate) relay: bool,
    pub(crate) json: Option<&'static str>,
    pub(crate) delay: Option<(MessageKind, Duration)>,
    pub(crate) terminal: Option<Terminal>,
    migrate_launcher: Vec<String>,
    receive_launcher: Vec<String>,
    pub(crate) receive_args: Vec<String>,
    pub(crate) receive_without_feature: Option<KernelFeature>,
    pub(crate) journals: [Option<PathBuf>; 2],
    default_retry: bool,
    programs: [Option<PathBuf>; 2],
}

impl MigrationPlan {
    /// A migration by `precopy`, `postcopy` or `hybrid`, over unix sockets.
    pub fn new(mode: &'static str) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// The mode.
    pub fn mode(&self) -> &'static str {
        self.mode
    }

    /// Changes the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: &'static str) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the transport.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Adds arguments for `hikkoshi migrate`.
    #[must_use]
    pub fn migrate_args(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Sets the QEMU version of the destination.
    #[must_use]
    pub fn destination_version(mut self, version: QemuVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// Sets the destination's configuration; default: the source's.
    #[must_use]
    pub fn destination_config(mut self, config: VmConfig) -> Self {
        self.destination = Some(config);
        self
    }

    /// Writes the source's JSON report to its standard output.
    #[must_use]
    pub fn json_to_stdout(mut self) -> Self {
        self.json = Some("-");
        self
    }

    /// Writes the source's JSON report to a path that cannot be written.
    #[must_use]
    pub fn json_to_unwritable_path(mut self) -> Self {
        self.json = Some("/proc/nowhere/account.json");
        self
    }

    /// Adds a relay that cuts all links at a breakpoint.
    #[must_use]
    pub fn cut_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Cut));
        self.relay = true;
        self
    }

    /// Adds a relay that closes all links at a breakpoint, and accepts new ones.
    #[must_use]
    pub fn reset_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Reset));
        self.relay = true;
        self
    }

    /// Adds a relay that holds messages at a breakpoint.
    #[must_use]
    pub fn hold_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Hold));
        self.relay = true;
        self
    }

    /// Adds a relay that delays each message of that kind.
    #[must_use]
    pub fn delay(mut self, kind: MessageKind, duration: Duration) -> Self {
        self.delay = Some((kind, duration));
        self.relay = true;
        self
    }

    /// Makes a terminal the standard error of `hikkoshi migrate`.
    #[must_use]
    pub fn migrate_on(mut self, terminal: &Terminal) -> Self {
        self.terminal = Some(terminal.clone());
        self
    }

    /// Uses the engines' default retry time.
    #[must_use]
    pub fn default_retry(mut self) -> Self {
        self.default_retry = true;
        self
    }

    /// Adds a relay that only passes messages on.
    #[must_use]
    pub fn with_relay(mut self) -> Self {
        self.relay = true;
        self
    }

    /// Runs the engines in these namespaces, and the destination's QEMU, too.
    #[must_use]
    pub fn between_namespaces(mut self, source: &Namespace, destination: &Namespace) -> Self {
        self.hosts = Some((source.clone(), destination.clone()));
        self
    }

    /// Adds arguments for `hikkoshi receive`.
    #[must_use]
    pub fn receive_args(mut self, arguments: &[&str]) -> Self {
        self.receive_args
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// Sets a command that starts `hikkoshi receive`, such as `unshare --mount sh -c …`.
    #[must_use]
    pub fn receive_launcher(mut self, words: &[&str]) -> Self {
        self.receive_launcher = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Sets a command that starts `hikkoshi migrate`.
    #[must_use]
    pub fn migrate_launcher(mut self, words: &[&str]) -> Self {
        self.migrate_launcher = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Runs the destination's engine without a kernel feature.
    #[must_use]
    pub fn receive_without_feature(mut self, feature: KernelFeature) -> Self {
        self.receive_without_feature = Some(feature);
        self
    }

    /// Sets the journal folders of both engines, the source's first.
    #[must_use]
    pub fn journals_at(mut self, source: &Path, destination: &Path) -> Self {
        self.journals = [source, destination].map(|folder| Some(folder.to_owned()));
        self
    }

    /// Sets the programs that begin the migration, the source's first, instead of the one under
    /// test. Engines that resume it are of the one under test.
    #[must_use]
    pub fn begun_by(mut self, programs: [&Path; 2]) -> Self {
        self.programs = programs.map(|program| Some(program.to_owned()));
        self
    }

    /// Whether a program that is not under test begins it.
    pub(crate) fn is_begun_by_others(&self) -> bool {
        self.programs.iter().any(Option::is_some)
    }

    /// The command that begins the migration on that side.
    pub(crate) fn beginning(&self, source: bool) -> Command {
        let program = &self.programs[usize::from(!source)];
        self.command(source, program.clone().unwrap_or_else(hikkoshi))
    }

    /// The command for `hikkoshi` on the host of that side, with its launcher.
    pub(crate) fn hikkoshi(&self, source: bool) -> Command {
        self.command(source, hikkoshi())
    }

    fn command(&self, source: bool, hikkoshi: PathBuf) -> Command {
        let by = if source {
            &self.migrate_launcher
        } else {
            &self.receive_launcher
        };
        let (program, words) = match by.split_first() {
            Some((program, words)) => (PathBuf::from(program), Some(words)),
            None => (hikkoshi.clone(), None),
        };
        let mut command = match &self.hosts {
            Some((one, other)) => (if source { one } else { other }).command(program),
            None => Command::new(program),
        };
        if let Some(words) = words {
            command.args(words).arg(hikkoshi);
        }
        command
    }

    /// Whether the links are unencrypted and go beyond one machine.
    pub(crate) fn is_plaintext(&self) -> bool {
        matches!(self.transport, Transport::Address(_))
    }

    /// Whether the links use TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.transport, Transport::Invitation(_) | Transport::Tls(_))
    }

    /// The retry arguments. Tests check the behaviour after a lost link, so engines exit at once
    /// unless the test sets another value. In pre-copy that is the default.
    pub(crate) fn retries(&self, given: &[String]) -> &'static [&'static str] {
        let is_set = given.iter().any(|a| a.starts_with("--retry-for"));
        if is_set || self.mode == "precopy" || self.default_retry {
            &[]
        } else {
            &["--retry-for", "0"]
        }
    }

    /// Adds `hikkoshi`'s arguments at the source, except those for the JSON report.
    pub(crate) fn migrate(
        &self,
        command: &mut Command,
        address: &str,
        source: &Vm,
        journal: &Path,
    ) {
        command.args(["migrate", "--mode", self.mode]);
        match self.transport {
            // The invitation itself is passed on standard input.
            Transport::Invitation(_) => command.args(["--to", "-"]),
            _ => command.arg(address),
        };
        command.arg("--qmp");
        command.arg(source.qmp_path());
        command.arg("--journal").arg(journal);
        command.args(&self.arguments);
        command.args(self.retries(&self.arguments));
        if !self.arguments.iter().any(|a| a == "--max-downtime") {
            command.args(["--max-downtime", MAX_DOWNTIME_MS]);
        }
    }
}
