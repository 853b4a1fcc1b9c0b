//! One attempt to move a guest, with everything that takes part in it.

use crate::disk::with_disk_of;
use crate::{
    Account, Ended, Kind, LONG, Lack, Moment, Program, Relay, Scene, Schema, Then, Traces, Watcher,
    eventually, hikkoshi, own_address,
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
pub enum Via {
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
pub struct Trip {
    pub(crate) mode: &'static str,
    pub(crate) via: Via,
    pub(crate) arguments: Vec<String>,
    pub(crate) version: Option<QemuVersion>,
    pub(crate) plan: Option<(Moment, Then)>,
    pub(crate) hosts: Option<(Namespace, Namespace)>,
    pub(crate) destination: Option<VmConfig>,
    pub(crate) relay: bool,
    pub(crate) json: Option<&'static str>,
    slow: Option<(Kind, Duration)>,
    migrate_by: Vec<String>,
    receive_by: Vec<String>,
    receive_with: Vec<String>,
    receive_without: Option<Lack>,
    journals: [Option<PathBuf>; 2],
    retry_by_default: bool,
}

impl Trip {
    /// By `precopy`, `postcopy` or `hybrid`, over unix sockets.
    pub fn by(mode: &'static str) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    /// The same by another mode.
    #[must_use]
    pub fn instead_by(mut self, mode: &'static str) -> Self {
        self.mode = mode;
        self
    }

    /// Over these links.
    #[must_use]
    pub fn via(mut self, via: Via) -> Self {
        self.via = via;
        self
    }

    /// More arguments for `hikkoshi migrate`.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// To that QEMU.
    #[must_use]
    pub fn to(mut self, version: QemuVersion) -> Self {
        self.version = Some(version);
        self
    }

    /// To a destination like this one instead of one like the source.
    #[must_use]
    pub fn to_like(mut self, config: VmConfig) -> Self {
        self.destination = Some(config);
        self
    }

    /// With the source's account on its standard output.
    #[must_use]
    pub fn json_printed(mut self) -> Self {
        self.json = Some("-");
        self
    }

    /// With the source's account in a place where nothing can be written.
    #[must_use]
    pub fn json_nowhere(mut self) -> Self {
        self.json = Some("/proc/nowhere/account.json");
        self
    }

    /// With a relay that cuts all links at a moment.
    #[must_use]
    pub fn cut(mut self, at: Moment) -> Self {
        self.plan = Some((at, Then::Cut));
        self.relay = true;
        self
    }

    /// With a relay that ends all links at a moment; new ones come about.
    #[must_use]
    pub fn interrupt(mut self, at: Moment) -> Self {
        self.plan = Some((at, Then::Interrupt));
        self.relay = true;
        self
    }

    /// With a relay that holds at a moment.
    #[must_use]
    pub fn hold(mut self, at: Moment) -> Self {
        self.plan = Some((at, Then::Hold));
        self.relay = true;
        self
    }

    /// With a relay on which each message of that kind takes so much longer.
    #[must_use]
    pub fn slow(mut self, kind: Kind, longer: Duration) -> Self {
        self.slow = Some((kind, longer));
        self.relay = true;
        self
    }

    /// With engines that retry for as long as they do by default.
    #[must_use]
    pub fn retry_by_default(mut self) -> Self {
        self.retry_by_default = true;
        self
    }

    /// With a relay that does nothing unasked.
    #[must_use]
    pub fn relayed(mut self) -> Self {
        self.relay = true;
        self
    }

    /// The engines run in these namespaces, the destination's QEMU too.
    #[must_use]
    pub fn between(mut self, source: &Namespace, destination: &Namespace) -> Self {
        self.hosts = Some((source.clone(), destination.clone()));
        self
    }

    /// More arguments for `hikkoshi receive`.
    #[must_use]
    pub fn receive_with(mut self, arguments: &[&str]) -> Self {
        self.receive_with
            .extend(arguments.iter().map(|&a| a.to_owned()));
        self
    }

    /// With `hikkoshi receive` started by these words, such as `unshare --mount sh -c …`.
    #[must_use]
    pub fn receive_by(mut self, words: &[&str]) -> Self {
        self.receive_by = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// With `hikkoshi migrate` started by these words.
    #[must_use]
    pub fn migrate_by(mut self, words: &[&str]) -> Self {
        self.migrate_by = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// With a destination whose engine runs on a kernel that lacks something.
    #[must_use]
    pub fn receive_without(mut self, lack: Lack) -> Self {
        self.receive_without = Some(lack);
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
            &self.migrate_by
        } else {
            &self.receive_by
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
        matches!(self.via, Via::Address(_))
    }

    /// Whether its links are TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self.via, Via::Invitation(_) | Via::Tls(_))
    }

    /// Tests look at what comes of a lost link, so that engines leave at once unless they are told
    /// not to. In pre-copy that is the default.
    fn retries(&self, given: &[String]) -> &'static [&'static str] {
        let told = given.iter().any(|a| a.starts_with("--retry-for"));
        if told || self.mode == "precopy" || self.retry_by_default {
            &[]
        } else {
            &["--retry-for", "0"]
        }
    }

    /// `hikkoshi`'s arguments at the source, but for the account.
    fn migrate(&self, command: &mut Command, address: &str, source: &Vm, journal: &Path) {
        command.args(["migrate", "--mode", self.mode]);
        match self.via {
            // The invitation itself comes on standard input.
            Via::Invitation(_) => command.args(["--to", "-"]),
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
pub struct Attempt {
    /// `hikkoshi migrate`.
    pub migrate: Program,
    /// `hikkoshi receive`.
    pub receive: Program,
    /// The destination's QEMU.
    pub destination: Arc<Vm>,
    /// What is between them.
    relay: Option<Relay>,
    pub(crate) trip: Trip,
    pub(crate) number: u32,
    pub(crate) before: Traces,
    /// Lines on the guest's console when it began.
    pub(crate) lines: usize,
    watcher: Watcher,
    accounts: [PathBuf; 2],
    listens: String,
    source: Arc<Vm>,
    journals: [PathBuf; 2],
    /// Somebody who may read the RAM files of both QEMUs, as everybody may, has
    /// locked them.
    _stranger: Vec<File>,
}

/// How both engines ended.
#[derive(Debug)]
pub struct Ends {
    /// `hikkoshi migrate`.
    pub migrate: Ended,
    /// `hikkoshi receive`.
    pub receive: Ended,
    /// The accounts that they wrote, if any.
    pub accounts: [Option<Account>; 2],
}

impl Ends {
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

impl Ended {
    /// Asserts that it ended with `code` and said each of `parts` on standard error.
    ///
    /// # Panics
    /// When not.
    pub fn assert(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.said.contains(part), "{part:?} is not in {self:?}");
        }
        if code != 0 {
            assert!(!self.said.trim().is_empty(), "it ended without a word");
        }
    }
}

impl Attempt {
    pub(crate) fn start(
        scene: &Scene,
        source: &Arc<Vm>,
        config: &VmConfig,
        trip: &Trip,
        number: u32,
    ) -> Self {
        let mut config = match &trip.destination {
            Some(there) => with_disk_of(config, there.clone()),
            None => config.clone(),
        };
        if let Some(version) = trip.version {
            config = config.version(version);
        }
        if let Some((_, host)) = &trip.hosts {
            config = config.namespace(host);
        }
        let destination = config
            .console(source.console().clone())
            .incoming()
            .start(scene.lab(), &format!("host{number}"))
            .unwrap();
        let destination = Arc::new(destination);
        let before = Traces::of(source);
        let ram = source.ram_files().iter().chain(destination.ram_files());
        let stranger = ram.filter_map(|path| locked(path)).collect();
        let at = |name: &str| scene.folder().join(format!("{name}{number}"));
        let accounts = [at("migrate.json"), at("receive.json")];
        let listen = match &trip.via {
            Via::Unix => format!("unix:{}", at("listen").display()),
            Via::Tcp => own_address(),
            Via::Address(address) | Via::Invitation(address) | Via::Tls(address) => address.clone(),
        };
        let plaintext = trip.is_plaintext();
        let mut receive = trip.hikkoshi(false);
        receive.args(["receive", "--listen", &listen, "--qmp"]);
        receive.arg(destination.qmp_path());
        receive.arg("--json").arg(&accounts[1]);
        let common = scene.folder().join("journal");
        let journals = trip
            .journals
            .clone()
            .map(|own| own.unwrap_or(common.clone()));
        receive.arg("--journal").arg(&journals[1]);
        receive.args(&trip.receive_with);
        receive.args(trip.retries(&trip.receive_with));
        if plaintext {
            receive.arg("--plaintext");
        }
        let receive = match trip.receive_without {
            Some(lack) => lack.during(|| Program::start("receive", receive)),
            None => Program::start("receive", receive),
        };
        let line = receive.wait_said("waiting for a guest at ");
        let listens = address_in(&line);

        let relay = trip.relay.then(|| {
            let door = at("relay");
            let door = (trip.via == Via::Unix).then_some(door.as_path());
            Relay::start(door, listens, trip.is_encrypted(), trip.plan, trip.slow)
        });
        let address = relay.as_ref().map_or(listens, |relay| relay.address());
        let mut invitation = String::new();
        if let Via::Invitation(_) = trip.via {
            invitation = receive.wait_printed("hikkoshi1:");
            if relay.is_some() {
                let (keys, _) = invitation.split_once('@').unwrap();
                invitation = format!("{keys}@{address}");
            }
        }
        let watcher = Watcher::start(source, &destination);
        let lines = source.console().len();
        let mut migrate = trip.hikkoshi(true);
        trip.migrate(&mut migrate, address, source, &journals[0]);
        migrate.arg("--json");
        migrate.arg(trip.json.map_or(accounts[0].as_path(), Path::new));
        if plaintext {
            migrate.arg("--plaintext");
        }
        Self {
            migrate: Program::start_told("migrate", migrate, &invitation),
            receive,
            destination,
            relay,
            trip: trip.clone(),
            number,
            before,
            lines,
            watcher,
            accounts,
            listens: listens.to_owned(),
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
        self.start_receive_again(with);
        let line = self.receive.wait_said("waiting for its source at ");
        line.rsplit(' ')
            .next()
            .unwrap()
            .clone_into(&mut self.listens);
    }

    /// The same without waiting.
    pub fn start_receive_again(&mut self, with: &[&str]) {
        let mut receive = self.trip.hikkoshi(false);
        receive.args(["receive", "--resume", "--listen", &self.listens, "--qmp"]);
        receive.arg(self.destination.qmp_path());
        receive.arg("--journal").arg(&self.journals[1]);
        receive.arg("--json").arg(&self.accounts[1]);
        receive.args(with);
        if self.trip.is_plaintext() {
            receive.arg("--plaintext");
        }
        self.receive = Program::start("receive --resume", receive);
    }

    /// From now on the destination listens, and the source comes, there.
    pub fn meet_at(&mut self, address: &str) {
        address.clone_into(&mut self.listens);
    }

    /// Starts `hikkoshi migrate --resume` in place of the engine that has ended or was killed.
    pub fn resume_migrate(&mut self, with: &[&str]) {
        let mut migrate = self.trip.hikkoshi(true);
        migrate.args(["migrate", "--resume", &self.listens, "--qmp"]);
        migrate.arg(self.source.qmp_path());
        migrate.arg("--journal").arg(&self.journals[0]);
        migrate.arg("--json").arg(&self.accounts[0]);
        migrate.args(with);
        if self.trip.is_plaintext() {
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
    pub fn has_ended_well(&mut self) -> bool {
        [&mut self.migrate, &mut self.receive]
            .into_iter()
            .any(|engine| engine.has_ended() && engine.wait().code == Some(0))
    }

    /// Waits until the engine of that side has said so many lines with `part` in them; whether it
    /// has. It never will when the migration is over before, as [`Attempt::see_out`] then shows.
    ///
    /// # Panics
    /// When an engine ends otherwise, or it has not in a long time.
    pub fn has_said(&mut self, side: Side, part: &str, times: usize) -> bool {
        let deadline = Instant::now() + LONG;
        loop {
            let mut over = false;
            for engine in [&mut self.migrate, &mut self.receive] {
                if engine.has_ended() {
                    // With this all that it has said is known.
                    engine.wait().assert(0, &[]);
                    over = true;
                }
            }
            let engine = match side {
                Side::Source => &self.migrate,
                Side::Destination => &self.receive,
            };
            if engine.times_said(part) >= times {
                return true;
            }
            if over {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "{side:?}: not {part:?} {times} times; migrate: {}; receive: {}",
                self.migrate.said(),
                self.receive.said()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends a migration of which an engine knows already that it is over, wherever the other one
    /// is: both are killed, and what their journals lead to is that the guest has all of its pages.
    ///
    /// # Panics
    /// When it is not over.
    pub fn see_out(&mut self) {
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
    pub fn migrate_again(&mut self, source: &Vm) {
        let mut migrate = Command::new(hikkoshi());
        self.trip
            .migrate(&mut migrate, &self.listens, source, &self.journals[0]);
        migrate.arg("--json").arg(&self.accounts[0]);
        self.migrate = Program::start("migrate", migrate);
    }

    /// Where the destination listens.
    pub fn listens(&self) -> &str {
        &self.listens
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
            self.migrate.said(),
            self.receive.said()
        );
    }

    /// Waits for the source to end. A destination whose source went away before it was let in
    /// waits for another one: it is sent home.
    ///
    /// # Panics
    /// When one does not end.
    pub fn wait_for_source_first(mut self) -> (Ends, Arrived) {
        self.migrate.wait();
        eventually("the destination has ended or waits again", || {
            let said = self.receive.said();
            match self.receive.has_ended() || said.contains("refused a guest") {
                true => Ok(()),
                false => Err(said),
            }
        });
        if !self.receive.has_ended() {
            self.receive.interrupt();
        }
        self.wait()
    }

    /// Waits for both engines to end.
    ///
    /// # Panics
    /// When they do not, when two guests ran, or when the moment asked for never came.
    pub fn wait(mut self) -> (Ends, Arrived) {
        let migrate = self.migrate.wait();
        let receive = self.receive.wait();
        if let Some((moment, _)) = self.trip.plan {
            assert!(
                self.relay().reached(),
                "there was no moment {moment}: {migrate:?} {receive:?}"
            );
        }
        self.watcher.finish();
        let accounts = self.accounts.map(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            let written = Schema::published().assert("file", &text);
            // Why there is none.
            written["error"].is_null().then(|| Account::read(&text))
        });
        let ends = Ends {
            migrate,
            receive,
            accounts,
        };
        let arrived = Arrived {
            destination: self.destination,
            trip: self.trip,
            number: self.number,
            before: self.before,
            lines: self.lines,
            _relay: self.relay,
        };
        (ends, arrived)
    }
}

/// What is left when both engines have ended.
#[derive(Debug)]
pub struct Arrived {
    /// The destination's QEMU.
    pub destination: Arc<Vm>,
    pub(crate) trip: Trip,
    pub(crate) number: u32,
    /// The source's QEMU before it all.
    pub before: Traces,
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
