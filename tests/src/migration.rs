//! One attempt to move a guest, with everything that takes part in it.

use crate::disk::with_disk_of;
use crate::{
    Breakpoint, Exit, JsonReport, JsonSchema, KernelFeature, LONG, MessageKind, Program, QemuState,
    Relay, RelayAction, SplitBrainWatcher, TestEnv, eventually, hikkoshi, unique_address,
};
use hikkoshi_lab::{Namespace, QemuVersion, Vm, VmConfig};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// One of the two engines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// `hikkoshi migrate`.
    Source,
    /// `hikkoshi receive`.
    Destination,
}

/// The address in a line about where somebody listens.
///
/// # Panics
/// When there is none.
pub fn address_in(line: &str) -> &str {
    let (_, address) = line.split_once("a guest at ").unwrap();
    address.split([',', ' ']).next().unwrap()
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
    slow: Option<(MessageKind, Duration)>,
    migrate_launcher: Vec<String>,
    receive_launcher: Vec<String>,
    receive_args: Vec<String>,
    receive_without_feature: Option<KernelFeature>,
    journals: [Option<PathBuf>; 2],
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
    fn hikkoshi(&self, source: bool) -> Command {
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
    fn is_plaintext(&self) -> bool {
        matches!(self.transport, Transport::Address(_))
    }

    /// Whether its links are TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.transport, Transport::Invitation(_) | Transport::Tls(_))
    }

    /// Tests look at what comes of a lost link, so that engines leave at once unless they are told
    /// not to. In pre-copy that is the default.
    fn retries(&self, given: &[String]) -> &'static [&'static str] {
        let told = given.iter().any(|a| a.starts_with("--retry-for"));
        if told || self.mode == "precopy" || self.default_retry {
            &[]
        } else {
            &["--retry-for", "0"]
        }
    }

    /// `hikkoshi`'s arguments at the source, but for the account.
    fn migrate(&self, command: &mut Command, address: &str, source: &Vm, journal: &Path) {
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

/// Both engines at work.
#[derive(Debug)]
pub struct Migration {
    /// `hikkoshi migrate`.
    pub migrate: Program,
    /// `hikkoshi receive`.
    pub receive: Program,
    /// The destination's QEMU.
    pub destination: Arc<Vm>,
    /// What is between them.
    relay: Option<Relay>,
    pub(crate) plan: MigrationPlan,
    pub(crate) number: u32,
    pub(crate) before: QemuState,
    /// Lines on the guest's console when it began.
    pub(crate) lines: usize,
    watcher: SplitBrainWatcher,
    accounts: [PathBuf; 2],
    listen_address: String,
    source: Arc<Vm>,
    journals: [PathBuf; 2],
    /// Somebody who may read the RAM files of both QEMUs, as everybody may, has
    /// locked them.
    _stranger: Vec<File>,
}

/// How both engines ended.
#[derive(Debug)]
pub struct Exits {
    /// `hikkoshi migrate`.
    pub migrate: Exit,
    /// `hikkoshi receive`.
    pub receive: Exit,
    /// The accounts that they wrote, if any.
    pub accounts: [Option<JsonReport>; 2],
}

impl Exits {
    /// Both exit codes, the source's first.
    pub fn codes(&self) -> [Option<i32>; 2] {
        [self.migrate.code, self.receive.code]
    }

    /// Asserts that the source ended with `code` and said each of `parts`.
    ///
    /// # Panics
    /// When not.
    pub fn assert_source(&self, code: i32, parts: &[&str]) {
        self.migrate.assert(code, parts);
    }

    /// Asserts that the destination ended with `code` and said each of `parts`.
    ///
    /// # Panics
    /// When not.
    pub fn assert_destination(&self, code: i32, parts: &[&str]) {
        self.receive.assert(code, parts);
    }
}

impl Exit {
    /// Asserts that it ended with `code` and said each of `parts` on standard error.
    ///
    /// # Panics
    /// When not.
    pub fn assert(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        }
        if code != 0 {
            assert!(!self.stderr.trim().is_empty(), "it ended without a word");
        }
    }
}

impl Migration {
    pub(crate) fn start(
        env: &TestEnv,
        source: &Arc<Vm>,
        config: &VmConfig,
        plan: &MigrationPlan,
        number: u32,
    ) -> Self {
        let mut config = match &plan.destination {
            Some(there) => with_disk_of(config, there.clone()),
            None => config.clone(),
        };
        if let Some(version) = plan.version {
            config = config.version(version);
        }
        if let Some((_, host)) = &plan.hosts {
            config = config.namespace(host);
        }
        let destination = config
            .console(source.console().clone())
            .incoming()
            .start(env.lab(), &format!("host{number}"))
            .unwrap();
        let destination = Arc::new(destination);
        let before = QemuState::of(source);
        let ram = source.ram_files().iter().chain(destination.ram_files());
        let stranger = ram.filter_map(|path| locked(path)).collect();
        let at = |name: &str| env.folder().join(format!("{name}{number}"));
        let accounts = [at("migrate.json"), at("receive.json")];
        let listen = match &plan.transport {
            Transport::Unix => format!("unix:{}", at("listen").display()),
            Transport::Tcp => unique_address(),
            Transport::Address(address)
            | Transport::Invitation(address)
            | Transport::Tls(address) => address.clone(),
        };
        let plaintext = plan.is_plaintext();
        let mut receive = plan.hikkoshi(false);
        receive.args(["receive", "--listen", &listen, "--qmp"]);
        receive.arg(destination.qmp_path());
        receive.arg("--json").arg(&accounts[1]);
        let common = env.folder().join("journal");
        let journals = plan
            .journals
            .clone()
            .map(|own| own.unwrap_or(common.clone()));
        receive.arg("--journal").arg(&journals[1]);
        receive.args(&plan.receive_args);
        receive.args(plan.retries(&plan.receive_args));
        if plaintext {
            receive.arg("--plaintext");
        }
        let receive = match plan.receive_without_feature {
            Some(feature) => feature.run_without(|| Program::start("receive", receive)),
            None => Program::start("receive", receive),
        };
        let line = receive.wait_stderr("waiting for a guest at ");
        let listen_address = address_in(&line);

        let relay = plan.relay.then(|| {
            let door = at("relay");
            let door = (plan.transport == Transport::Unix).then_some(door.as_path());
            Relay::start(
                door,
                listen_address,
                plan.is_encrypted(),
                plan.breakpoint,
                plan.slow,
            )
        });
        let address = relay
            .as_ref()
            .map_or(listen_address, |relay| relay.address());
        let mut invitation = String::new();
        if let Transport::Invitation(_) = plan.transport {
            invitation = receive.wait_stdout("hikkoshi1:");
            if relay.is_some() {
                let (keys, _) = invitation.split_once('@').unwrap();
                invitation = format!("{keys}@{address}");
            }
        }
        let watcher = SplitBrainWatcher::start(source, &destination);
        let lines = source.console().len();
        let mut migrate = plan.hikkoshi(true);
        plan.migrate(&mut migrate, address, source, &journals[0]);
        migrate.arg("--json");
        migrate.arg(plan.json.map_or(accounts[0].as_path(), Path::new));
        if plaintext {
            migrate.arg("--plaintext");
        }
        Self {
            migrate: Program::start_with_input("migrate", migrate, &invitation),
            receive,
            destination,
            relay,
            plan: plan.clone(),
            number,
            before,
            lines,
            watcher,
            accounts,
            listen_address: listen_address.to_owned(),
            source: Arc::clone(source),
            journals,
            _stranger: stranger,
        }
    }

    /// Starts `hikkoshi receive --resume` in place of the engine that has ended or was killed, and
    /// waits until it listens, where the other one did. No relay is between it and the source.
    ///
    /// # Panics
    /// When it does not.
    pub fn resume_receive(&mut self, with: &[&str]) {
        self.start_receive_resume(with);
        let line = self.receive.wait_stderr("waiting for its source at ");
        line.rsplit(' ')
            .next()
            .unwrap()
            .clone_into(&mut self.listen_address);
    }

    /// The same without waiting.
    pub fn start_receive_resume(&mut self, with: &[&str]) {
        let mut receive = self.plan.hikkoshi(false);
        receive.args([
            "receive",
            "--resume",
            "--listen",
            &self.listen_address,
            "--qmp",
        ]);
        receive.arg(self.destination.qmp_path());
        receive.arg("--journal").arg(&self.journals[1]);
        receive.arg("--json").arg(&self.accounts[1]);
        receive.args(with);
        if self.plan.is_plaintext() {
            receive.arg("--plaintext");
        }
        self.receive = Program::start("receive --resume", receive);
    }

    /// From now on the destination listens, and the source comes, there.
    pub fn set_address(&mut self, address: &str) {
        address.clone_into(&mut self.listen_address);
    }

    /// Starts `hikkoshi migrate --resume` in place of the engine that has ended or was killed.
    pub fn resume_migrate(&mut self, with: &[&str]) {
        let mut migrate = self.plan.hikkoshi(true);
        migrate.args(["migrate", "--resume", &self.listen_address, "--qmp"]);
        migrate.arg(self.source.qmp_path());
        migrate.arg("--journal").arg(&self.journals[0]);
        migrate.arg("--json").arg(&self.accounts[0]);
        migrate.args(with);
        if self.plan.is_plaintext() {
            migrate.arg("--plaintext");
        }
        self.migrate = Program::start("migrate --resume", migrate);
    }

    /// Where both engines keep their journals, the source's first.
    pub fn journal_folders(&self) -> &[PathBuf; 2] {
        &self.journals
    }

    /// Journals that are there.
    ///
    /// # Panics
    /// When a folder cannot be read.
    pub fn journals(&self) -> Vec<String> {
        let [source, destination] = &self.journals;
        let mut found = journals_in(source);
        if destination != source {
            found.extend(journals_in(destination));
        }
        found
    }

    /// Which engines have a journal, the source's first.
    ///
    /// # Panics
    /// When a folder cannot be read.
    pub fn have_journals(&self) -> [bool; 2] {
        let journals = self.journals();
        [("source", &self.source), ("destination", &self.destination)].map(|(side, vm)| {
            let name = format!("{side}-{}-", vm.pid());
            journals.iter().any(|file| file.starts_with(&name))
        })
    }

    /// The source's QEMU.
    pub fn source(&self) -> &Arc<Vm> {
        &self.source
    }

    /// Whether an engine has ended because the guest has all of its pages.
    pub fn has_succeeded(&mut self) -> bool {
        [&mut self.migrate, &mut self.receive]
            .into_iter()
            .any(|engine| engine.has_exited() && engine.wait().code == Some(0))
    }

    /// Waits until the engine of that side has said so many lines with `part` in them; whether it
    /// has. It never will when the migration is over before, as [`Migration::finish_after_success`] then shows.
    ///
    /// # Panics
    /// When an engine ends otherwise, or it has not in a long time.
    pub fn wait_stderr_or_success(&mut self, side: Side, part: &str, times: usize) -> bool {
        let deadline = Instant::now() + LONG;
        loop {
            let mut over = false;
            for engine in [&mut self.migrate, &mut self.receive] {
                if engine.has_exited() {
                    // With this all that it has said is known.
                    engine.wait().assert(0, &[]);
                    over = true;
                }
            }
            let engine = match side {
                Side::Source => &self.migrate,
                Side::Destination => &self.receive,
            };
            if engine.stderr_count(part) >= times {
                return true;
            }
            if over {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "{side:?}: not {part:?} {times} times; migrate: {}; receive: {}",
                self.migrate.stderr(),
                self.receive.stderr()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends a migration of which an engine knows already that it is over, wherever the other one
    /// is: both are killed, and what their journals lead to is that the guest has all of its pages.
    ///
    /// # Panics
    /// When it is not over.
    pub fn finish_after_success(&mut self) {
        self.migrate.kill();
        self.receive.kill();
        let [source, destination] = self.have_journals();
        if destination {
            self.resume_receive(&[]);
        }
        if source {
            self.resume_migrate(&[]);
            self.migrate.wait().assert(0, &[]);
        }
        if destination {
            if !source {
                // Its source does not come any more. It stays if it lacks a page.
                self.receive.interrupt();
            }
            self.receive.wait().assert(0, &[]);
        }
        assert_eq!(self.have_journals(), [false; 2]);
        for account in &self.accounts {
            // One that was killed may have written half of it.
            let _ = std::fs::remove_file(account);
        }
    }

    /// Tries once more with the same destination, and no relay.
    pub fn retry_migrate(&mut self, source: &Vm) {
        let mut migrate = Command::new(hikkoshi());
        self.plan.migrate(
            &mut migrate,
            &self.listen_address,
            source,
            &self.journals[0],
        );
        migrate.arg("--json").arg(&self.accounts[0]);
        self.migrate = Program::start("migrate", migrate);
    }

    /// Where the destination listens.
    pub fn listen_address(&self) -> &str {
        &self.listen_address
    }

    /// The relay.
    ///
    /// # Panics
    /// When there is none.
    pub fn relay(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }

    /// Waits for the moment at which the relay holds.
    ///
    /// # Panics
    /// When it does not come.
    pub fn wait_held(&self) {
        assert!(
            self.relay().wait_reached(LONG),
            "the moment did not come; migrate: {}; receive: {}",
            self.migrate.stderr(),
            self.receive.stderr()
        );
    }

    /// Waits for the source to end. A destination whose source went away before it was let in
    /// waits for another one: it is sent home.
    ///
    /// # Panics
    /// When one does not end.
    pub fn wait_for_source_first(mut self) -> (Exits, FinishedMigration) {
        self.migrate.wait();
        eventually("the destination has ended or waits again", || {
            let said = self.receive.stderr();
            match self.receive.has_exited() || said.contains("refused a guest") {
                true => Ok(()),
                false => Err(said),
            }
        });
        if !self.receive.has_exited() {
            self.receive.interrupt();
        }
        self.wait()
    }

    /// Waits for both engines to end.
    ///
    /// # Panics
    /// When they do not, when two guests ran, or when the moment asked for never came.
    pub fn wait(mut self) -> (Exits, FinishedMigration) {
        let migrate = self.migrate.wait();
        let receive = self.receive.wait();
        if let Some((breakpoint, _)) = self.plan.breakpoint {
            assert!(
                self.relay().reached(),
                "there was no moment {breakpoint}: {migrate:?} {receive:?}"
            );
        }
        self.watcher.finish();
        let accounts = self.accounts.map(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            let written = JsonSchema::published().assert("file", &text);
            // Why there is none.
            written["error"].is_null().then(|| JsonReport::read(&text))
        });
        let exits = Exits {
            migrate,
            receive,
            accounts,
        };
        let finished = FinishedMigration {
            destination: self.destination,
            plan: self.plan,
            number: self.number,
            before: self.before,
            lines: self.lines,
            _relay: self.relay,
        };
        (exits, finished)
    }
}

/// What is left when both engines have ended.
#[derive(Debug)]
pub struct FinishedMigration {
    /// The destination's QEMU.
    pub destination: Arc<Vm>,
    pub(crate) plan: MigrationPlan,
    pub(crate) number: u32,
    /// The source's QEMU before it all.
    pub before: QemuState,
    pub(crate) lines: usize,
    _relay: Option<Relay>,
}

/// A RAM file, if it is there still, locked unless it is locked already.
fn locked(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Some(file)
}

/// Journals in that folder.
fn journals_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".json")).collect()
}
