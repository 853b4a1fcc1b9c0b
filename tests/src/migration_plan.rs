//! How to move a guest: mode, transport, arguments, and what the relay does.

use crate::{Breakpoint, KernelFeature, MessageKind, RelayAction, hikkoshi};
use hikkoshi_lab::{Namespace, QemuVersion, Vm, VmConfig};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What the guest may be stopped for in pre-copy, ms, unless a test says otherwise: enough for the
/// dirty pages of every guest here on a machine that sends a tenth of what others do. (It is sent
/// rounds as long as they make the downtime shorter, whatever is allowed.)
const PATIENT: &str = "5000";

/// What the links are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Transport {
    /// Unix sockets.
    #[default]
    Unix,
    /// TCP on loopback.
    Tcp,
    /// TCP between two network namespaces, to that address, in plain text.
    Address(String),
    /// That address, with TLS by the invitation that the destination shows.
    Invitation(String),
    /// That address, with TLS by certificates that the other arguments name.
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
    pub(crate) slow: Option<(MessageKind, Duration)>,
    migrate_launcher: Vec<String>,
    receive_launcher: Vec<String>,
    pub(crate) receive_args: Vec<String>,
    pub(crate) receive_without_feature: Option<KernelFeature>,
    pub(crate) journals: [Option<PathBuf>; 2],
    default_retry: bool,
}

impl MigrationPlan {
    /// By `precopy`, `postcopy` or `hybrid`, over unix sockets.
    pub fn new(mode: &'static str) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// The same by another mode.
    #[must_use]
    pub fn with_mode(mut self, mode: &'static str) -> Self {
        self.mode = mode;
        self
    }

    /// Over these links.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// More arguments for `hikkoshi migrate`.
    #[must_use]
    pub fn migrate_args(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// To that QEMU.
    #[must_use]
    pub fn destination_version(mut self, version: QemuVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// To a destination like this one instead of one like the source.
    #[must_use]
    pub fn destination_config(mut self, config: VmConfig) -> Self {
        self.destination = Some(config);
        self
    }

    /// With the source's account on its standard output.
    #[must_use]
    pub fn json_to_stdout(mut self) -> Self {
        self.json = Some("-");
        self
    }

    /// With the source's account in a place where nothing can be written.
    #[must_use]
    pub fn json_to_unwritable_path(mut self) -> Self {
        self.json = Some("/proc/nowhere/account.json");
        self
    }

    /// With a relay that cuts all links at a moment.
    #[must_use]
    pub fn cut_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Cut));
        self.relay = true;
        self
    }

    /// With a relay that ends all links at a moment; new ones come about.
    #[must_use]
    pub fn reset_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Reset));
        self.relay = true;
        self
    }

    /// With a relay that holds at a moment.
    #[must_use]
    pub fn hold_at(mut self, at: Breakpoint) -> Self {
        self.breakpoint = Some((at, RelayAction::Hold));
        self.relay = true;
        self
    }

    /// With a relay on which each message of that kind takes so much longer.
    #[must_use]
    pub fn delay(mut self, kind: MessageKind, longer: Duration) -> Self {
        self.slow = Some((kind, longer));
        self.relay = true;
        self
    }

    /// With engines that retry for as long as they do by default.
    #[must_use]
    pub fn default_retry(mut self) -> Self {
        self.default_retry = true;
        self
    }

    /// With a relay that does nothing unasked.
    #[must_use]
    pub fn with_relay(mut self) -> Self {
        self.relay = true;
        self
    }

    /// The engines run in these namespaces, the destination's QEMU too.
    #[must_use]
    pub fn between_namespaces(mut self, source: &Namespace, destination: &Namespace) -> Self {
        self.hosts = Some((source.clone(), destination.clone()));
        self
    }

    /// More arguments for `hikkoshi receive`.
    #[must_use]
    pub fn receive_args(mut self, arguments: &[&str]) -> Self {
        self.receive_args
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// With `hikkoshi receive` started by these words, such as `unshare --mount sh -c …`.
    #[must_use]
    pub fn receive_launcher(mut self, words: &[&str]) -> Self {
        self.receive_launcher = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// With `hikkoshi migrate` started by these words.
    #[must_use]
    pub fn migrate_launcher(mut self, words: &[&str]) -> Self {
        self.migrate_launcher = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// With a destination whose engine runs on a kernel that lacks something.
    #[must_use]
    pub fn receive_without_feature(mut self, feature: KernelFeature) -> Self {
        self.receive_without_feature = Some(feature);
        self
    }

    /// With both engines' journals in these folders, the source's first.
    #[must_use]
    pub fn journals_at(mut self, source: &Path, destination: &Path) -> Self {
        self.journals = [source, destination].map(|folder| Some(folder.to_owned()));
        self
    }

    /// `hikkoshi`, on the host of that side, started by what it is to be started by.
    pub(crate) fn hikkoshi(&self, source: bool) -> Command {
        let by = if source {
            &self.migrate_launcher
        } else {
            &self.receive_launcher
        };
        let (program, words) = match by.split_first() {
            Some((program, words)) => (PathBuf::from(program), Some(words)),
            None => (hikkoshi(), None),
        };
        let mut command = match &self.hosts {
            Some((one, other)) => (if source { one } else { other }).command(program),
            None => Command::new(program),
        };
        if let Some(words) = words {
            command.args(words).arg(hikkoshi());
        }
        command
    }

    /// Whether its links are beyond one machine, and not encrypted.
    pub(crate) fn is_plaintext(&self) -> bool {
        matches!(self.transport, Transport::Address(_))
    }

    /// Whether its links are TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.transport, Transport::Invitation(_) | Transport::Tls(_))
    }

    /// Tests look at what comes of a lost link, so that engines leave at once unless they are told
    /// not to. In pre-copy that is the default.
    pub(crate) fn retries(&self, given: &[String]) -> &'static [&'static str] {
        let told = given.iter().any(|a| a.starts_with("--retry-for"));
        if told || self.mode == "precopy" || self.default_retry {
            &[]
        } else {
            &["--retry-for", "0"]
        }
    }

    /// `hikkoshi`'s arguments at the source, but for the account.
    pub(crate) fn migrate(
        &self,
        command: &mut Command,
        address: &str,
        source: &Vm,
        journal: &Path,
    ) {
        command.args(["migrate", "--mode", self.mode]);
        match self.transport {
            // The invitation itself comes on standard input.
            Transport::Invitation(_) => command.args(["--to", "-"]),
            _ => command.arg(address),
        };
        command.arg("--qmp");
        command.arg(source.qmp_path());
        command.arg("--journal").arg(journal);
        command.args(&self.arguments);
        command.args(self.retries(&self.arguments));
        if !self.arguments.iter().any(|a| a == "--max-downtime") {
            command.args(["--max-downtime", PATIENT]);
        }
    }
}
