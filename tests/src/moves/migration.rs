//! A running migration: both engines, both QEMUs, and the relay.

use crate::guests::disk::with_disk_of;
use crate::{
    Exits, JsonReport, LONG, MigrationPlan, Program, QemuState, Relay, SplitBrainWatcher, TestEnv,
    Transport, hikkoshi, unique_address,
};
use hikkoshi_account::Side;
use hikkoshi_lab::{Vm, VmConfig};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The address in a message that says where the engine listens.
///
/// # Panics
/// When there is none.
pub fn address_in(line: &str) -> &str {
    let (_, address) = line.split_once("a guest at ").unwrap();
    address.split([',', ' ']).next().unwrap()
}

/// A running migration.
#[derive(Debug)]
pub struct Migration {
    /// `hikkoshi migrate`.
    pub migrate: Program,
    /// `hikkoshi receive`.
    pub receive: Program,
    /// The destination's QEMU.
    pub destination: Arc<Vm>,
    /// The relay between the engines.
    relay: Option<Relay>,
    pub(crate) plan: MigrationPlan,
    pub(crate) number: usize,
    pub(crate) before: QemuState,
    /// Number of lines on the guest's console at the start.
    pub(crate) lines: usize,
    watcher: SplitBrainWatcher,
    json_reports: [PathBuf; 2],
    listen_address: String,
    source: Arc<Vm>,
    journals: [PathBuf; 2],
    /// The RAM files of both QEMUs, locked by a third party, as every process that can read them
    /// may do.
    _ram_locks: Vec<File>,
}

impl Migration {
    pub(crate) fn start(
        env: &TestEnv,
        source: &Arc<Vm>,
        config: &VmConfig,
        plan: &MigrationPlan,
        number: usize,
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
        let before = QemuState::of_vm(source);
        let ram = source.ram_files().iter().chain(destination.ram_files());
        let ram_locks = ram.filter_map(|path| locked(path)).collect();
        let at = |name: &str| env.folder().join(format!("{name}{number}"));
        let json_reports = [at("migrate.json"), at("receive.json")];
        let listen = match &plan.transport {
            Transport::Unix => format!("unix:{}", at("listen").display()),
            Transport::Tcp => unique_address(),
            Transport::Address(address)
            | Transport::Invitation(address)
            | Transport::Tls(address) => address.clone(),
        };
        let plaintext = plan.is_plaintext();
        let mut receive = plan.beginning(false);
        receive.args(["receive", "--listen", &listen, "--qmp"]);
        receive.arg(destination.qmp_path());
        receive.arg("--json").arg(&json_reports[1]);
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
            let socket = at("relay");
            let socket = (plan.transport == Transport::Unix).then_some(socket.as_path());
            Relay::start(
                socket,
                listen_address,
                plan.is_encrypted(),
                plan.breakpoint,
                plan.delay,
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
        let mut migrate = plan.beginning(true);
        plan.migrate(&mut migrate, address, source, &journals[0]);
        migrate.arg("--json");
        migrate.arg(plan.json.map_or(json_reports[0].as_path(), Path::new));
        if plaintext {
            migrate.arg("--plaintext");
        }
        Self {
            migrate: Program::start_with("migrate", migrate, &invitation, plan.terminal.as_ref()),
            receive,
            destination,
            relay,
            plan: plan.clone(),
            number,
            before,
            lines,
            watcher,
            json_reports,
            listen_address: listen_address.to_owned(),
            source: Arc::clone(source),
            journals,
            _ram_locks: ram_locks,
        }
    }

    /// Starts `hikkoshi receive --resume` in place of the engine that has exited or was killed, and
    /// waits until it listens, at the same address. There is no relay between it and the source.
    ///
    /// # Panics
    /// When it does not listen.
    pub fn resume_receive(&mut self, with: &[&str]) {
        self.start_receive_resume(with);
        let line = self.receive.wait_stderr("waiting for its source at ");
        line.rsplit(' ')
            .next()
            .unwrap()
            .clone_into(&mut self.listen_address);
    }

    /// Starts `hikkoshi receive --resume` without waiting.
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
        receive.arg("--json").arg(&self.json_reports[1]);
        receive.args(with);
        if self.plan.is_plaintext() {
            receive.arg("--plaintext");
        }
        self.receive = Program::start("receive --resume", receive);
    }

    /// Sets the address at which resumed engines meet.
    pub fn set_address(&mut self, address: &str) {
        address.clone_into(&mut self.listen_address);
    }

    /// Starts `hikkoshi migrate --resume` in place of the engine that has exited or was killed.
    pub fn resume_migrate(&mut self, with: &[&str]) {
        let mut migrate = self.plan.hikkoshi(true);
        migrate.args(["migrate", "--resume", &self.listen_address, "--qmp"]);
        migrate.arg(self.source.qmp_path());
        migrate.arg("--journal").arg(&self.journals[0]);
        migrate.arg("--json").arg(&self.json_reports[0]);
        migrate.args(with);
        if self.plan.is_plaintext() {
            migrate.arg("--plaintext");
        }
        self.migrate = Program::start("migrate --resume", migrate);
    }

    /// The journal folders of both engines, the source's first.
    pub fn journal_folders(&self) -> &[PathBuf; 2] {
        &self.journals
    }

    /// The existing journals.
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

    /// Whether an engine has exited successfully, because the guest has all of its pages.
    pub fn has_succeeded(&mut self) -> bool {
        [&mut self.migrate, &mut self.receive]
            .into_iter()
            .any(|engine| engine.has_exited() && engine.wait().code == Some(0))
    }

    /// Waits until the engine of that side has printed this many lines with `part` in them, and
    /// returns true. Returns false if the migration succeeds first; see
    /// [`Migration::finish_after_success`].
    ///
    /// # Panics
    /// When an engine exits with an error, or after a long time.
    pub fn wait_stderr_or_success(&mut self, side: Side, part: &str, times: usize) -> bool {
        let deadline = Instant::now() + LONG;
        loop {
            let mut over = false;
            for engine in [&mut self.migrate, &mut self.receive] {
                if engine.has_exited() {
                    // After this, all of its output is known.
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
                "{side:?}: did not print {part:?} {times} times; migrate: {}; receive: {}",
                self.migrate.stderr(),
                self.receive.stderr()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends a migration that has succeeded on at least one side. Kills both engines; resuming from
    /// their journals must show that the guest has all of its pages.
    ///
    /// # Panics
    /// When the migration has not succeeded.
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
                // Its source is gone. It continues to wait only if a page is missing.
                self.receive.interrupt();
            }
            self.receive.wait().assert(0, &[]);
        }
        assert_eq!(self.have_journals(), [false; 2]);
        for json_report in &self.json_reports {
            // An engine that was killed may have written part of it.
            let _ = std::fs::remove_file(json_report);
        }
    }

    /// Starts `hikkoshi migrate` again with the same destination, without the relay.
    pub fn retry_migrate(&mut self, source: &Vm) {
        let mut migrate = Command::new(hikkoshi());
        self.plan.migrate(
            &mut migrate,
            &self.listen_address,
            source,
            &self.journals[0],
        );
        migrate.arg("--json").arg(&self.json_reports[0]);
        self.migrate = Program::start("migrate", migrate);
    }

    /// The address that the destination listens at.
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

    /// Waits until the relay holds at its breakpoint.
    ///
    /// # Panics
    /// When the breakpoint is not reached.
    pub fn wait_held(&self) {
        assert!(
            self.relay().wait_reached(LONG),
            "breakpoint not reached; migrate: {}; receive: {}",
            self.migrate.stderr(),
            self.receive.stderr()
        );
    }

    /// Waits for the source to exit. A destination that had not accepted the source waits for
    /// another one; it is interrupted.
    ///
    /// # Panics
    /// When one does not exit.
    pub fn wait_for_source_first(mut self) -> (Exits, FinishedMigration) {
        self.migrate.wait();
        self.receive.wait_exited_or_refused();
        if !self.receive.has_exited() {
            self.receive.interrupt();
        }
        self.wait()
    }

    /// Waits for both engines to exit.
    ///
    /// # Panics
    /// When they do not, when the guest ran twice, or when the breakpoint was not reached.
    pub fn wait(mut self) -> (Exits, FinishedMigration) {
        let migrate = self.migrate.wait();
        let receive = self.receive.wait();
        if let Some((breakpoint, _)) = self.plan.breakpoint {
            assert!(
                self.relay().reached(),
                "breakpoint not reached: {breakpoint}: {migrate:?} {receive:?}"
            );
        }
        let answers = self.watcher.finish();
        let exits = Exits {
            migrate,
            receive,
            json_reports: match self.plan.is_begun_by_others() {
                false => self.json_reports.map(JsonReport::written_to),
                // Another release writes reports of another schema.
                true => [None, None],
            },
        };
        let finished = FinishedMigration {
            destination: self.destination,
            answers,
            plan: self.plan,
            number: self.number,
            before: self.before,
            lines: self.lines,
            _relay: self.relay,
        };
        (exits, finished)
    }
}

/// A migration whose engines have exited.
#[derive(Debug)]
pub struct FinishedMigration {
    /// The destination's QEMU.
    pub destination: Arc<Vm>,
    /// Whether both QEMUs answered at the end.
    pub(crate) answers: bool,
    pub(crate) plan: MigrationPlan,
    pub(crate) number: usize,
    /// The state of the source's QEMU before the migration.
    pub before: QemuState,
    pub(crate) lines: usize,
    _relay: Option<Relay>,
}

/// Opens and locks a RAM file if it exists; ignores a lock of another process.
fn locked(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Some(file)
}

/// What is left in a run folder after a migration, besides the recording of its status, and the
/// folder of control sockets, where a killed engine's socket stays until the next engine.
///
/// # Panics
/// When the folder cannot be read.
pub fn left_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    names
        .filter(|name| name != "status" && name != "control")
        .collect()
}

/// The journals in that folder.
fn journals_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".json")).collect()
}
