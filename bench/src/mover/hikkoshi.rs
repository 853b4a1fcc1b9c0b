//! Moves the guest with hikkoshi: two processes, as on two hosts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hikkoshi_lab::Vm;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::outcome::MoveOutcome;
use crate::args::Args;
use crate::error::BenchError;
use crate::plan::Variant;
use crate::testbed::{DomainTestbed, Testbed};

/// How long the destination may take until it listens, and either side until it exits.
const SOON: Duration = Duration::from_secs(30);
/// How long a migration may take that is expected to finish.
const LONG: Duration = Duration::from_secs(300);
/// The folder for the journals.
const JOURNAL: &str = "/dev/shm/hikkoshi-bench";
const POLL: Duration = Duration::from_millis(1);

/// A running migration; killed on drop.
#[derive(Debug)]
pub(crate) struct HikkoshiMigration {
    receive: Side,
    migrate: Side,
    started: Instant,
    report: PathBuf,
    /// The destination's.
    received: PathBuf,
}

impl HikkoshiMigration {
    /// Starts the migration; `more` are further arguments for `hikkoshi migrate`.
    pub(crate) fn start(
        testbed: &Testbed,
        program: &Path,
        mode: &str,
        variant: Variant,
        args: &Args,
        more: &[&str],
    ) -> Result<Self, BenchError> {
        let waiting = Self::receive(testbed, program, variant)?;
        Self::migrate(waiting, testbed, program, mode, variant, args, more)
    }

    /// Starts the destination, and waits until it listens.
    pub(crate) fn receive(
        testbed: &Testbed,
        program: &Path,
        variant: Variant,
    ) -> Result<WaitingDestination, BenchError> {
        let encrypted = variant.is_encrypted();
        let open = if encrypted { "--invite" } else { "--plaintext" };
        let mut words = vec!["receive", "--listen", testbed.network.address(), open];
        words.extend(variant.receive_words());
        let mut receive = Side::start(
            "receive",
            testbed.network.destination().command(program),
            &words,
            Some(&testbed.destination),
            &report(testbed, "receive"),
            variant.log(),
        )?;
        receive.wait_listening()?;
        Ok(WaitingDestination(receive))
    }

    /// Starts the migration to a destination that waits.
    pub(crate) fn migrate(
        waiting: WaitingDestination,
        testbed: &Testbed,
        program: &Path,
        mode: &str,
        variant: Variant,
        args: &Args,
        more: &[&str],
    ) -> Result<Self, BenchError> {
        let WaitingDestination(mut receive) = waiting;
        let encrypted = variant.is_encrypted();
        let log = variant.log();
        let (downtime, variant) = (args.max_downtime.to_string(), variant.migrate_words());
        let invitation;
        let mut words = if encrypted {
            invitation = receive.invitation()?;
            vec!["migrate", "--to", &invitation, "--mode", mode]
        } else {
            vec![
                "migrate",
                testbed.network.address_for_source(),
                "--plaintext",
                "--mode",
                mode,
            ]
        };
        words.extend(["--max-downtime", &downtime]);
        words.extend(variant.iter().map(String::as_str));
        words.extend(more);
        let started = Instant::now();
        let migrate = Side::start(
            "migrate",
            testbed.network.source().command(program),
            &words,
            Some(&testbed.source),
            &report(testbed, "migrate"),
            log,
        )?;
        Ok(Self {
            receive,
            migrate,
            started,
            report: report(testbed, "migrate"),
            received: report(testbed, "receive"),
        })
    }

    /// Starts to move a domain from one libvirt daemon to the other, without TLS, as libvirt does.
    pub(crate) fn start_domain(
        testbed: &DomainTestbed<'_>,
        program: &Path,
        mode: &str,
        args: &Args,
    ) -> Result<Self, BenchError> {
        let report = |name: &str| testbed.folder.join(format!("{name}.json"));
        let address = testbed.network.address();
        let words = [
            "receive",
            "--connect",
            "qemu:///system",
            "--listen",
            address,
            "--plaintext",
        ];
        let command = testbed.destination.command(program);
        let mut receive = Side::start("receive", command, &words, None, &report("receive"), None)?;
        receive.wait_listening()?;
        let downtime = args.max_downtime.to_string();
        let words = [
            "migrate",
            "--domain",
            testbed.domain.name(),
            address,
            "--plaintext",
            "--mode",
            mode,
            "--max-downtime",
            &downtime,
        ];
        let started = Instant::now();
        let command = testbed.source.command(program);
        let migrate = Side::start("migrate", command, &words, None, &report("migrate"), None)?;
        Ok(Self {
            receive,
            migrate,
            started,
            report: report("migrate"),
            received: report("receive"),
        })
    }

    /// Waits for the end of the migration; cancels it after `give_up`.
    pub(crate) fn finish(mut self, give_up: Option<Duration>) -> Result<MoveOutcome, BenchError> {
        let (receive, migrate) = (&mut self.receive, &mut self.migrate);
        let ended = migrate.wait(give_up.unwrap_or(LONG))?;
        let called_off = give_up.is_some() && ended.is_none();
        let status = match ended {
            Some(status) => status,
            None => {
                migrate.interrupt();
                migrate.wait(SOON)?.ok_or_else(|| migrate.hangs())?
            }
        };
        let ended = Instant::now();
        let received = receive.wait(SOON)?.ok_or_else(|| receive.hangs())?;
        let mut moved = MoveOutcome {
            started: self.started,
            ended,
            called_off,
            own_downtime_ms: None,
            rounds: None,
            report: Value::Null,
        };
        if called_off {
            // 1: the guest continues to run at the source.
            if status.code() != Some(1) {
                return Err(migrate.ended(status));
            }
            moved.rounds = migrate.last_round();
            return Ok(moved);
        }
        if !status.success() {
            return Err(migrate.ended(status));
        }
        if !received.success() {
            return Err(receive.ended(received));
        }
        moved.report = read(&self.report)?;
        // The destination's steps of the switchover, beside the source's.
        moved.report["switchover_at_destination"] = read(&self.received)?["switchover"].take();
        moved.report["time_left"] = migrate.time_left();
        moved.own_downtime_ms = moved.report["downtime_ms"].as_f64();
        moved.rounds = moved.report["rounds"].as_u64();
        Ok(moved)
    }

    /// The fields of each entry of the destination's and the source's log so far.
    pub(crate) fn logs(&self) -> [Vec<Value>; 2] {
        [&self.receive, &self.migrate].map(Side::log)
    }

    /// Returns an error if one of the two processes has exited early.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        for side in [&mut self.migrate, &mut self.receive] {
            if let Some(status) = side.wait(Duration::ZERO)? {
                return Err(side.ended(status));
            }
        }
        Ok(())
    }
}

/// `hikkoshi receive` that waits for a guest.
#[derive(Debug)]
pub(crate) struct WaitingDestination(Side);

/// What `hikkoshi estimate` predicts for the testbed's guest and its destination, which waits.
/// `options` are further arguments.
pub(crate) fn estimate(
    testbed: &Testbed,
    program: &Path,
    options: &[&str],
) -> Result<Value, BenchError> {
    let side = "estimate";
    let output = testbed
        .network
        .source()
        .command(program)
        .args([side, testbed.network.address_for_source()])
        .args(["--plaintext", "--json", "-", "--qmp"])
        .arg(testbed.source.qmp_path())
        .args(options)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| BenchError::Program { side, source })?;
    if !output.status.success() {
        return Err(BenchError::Ended {
            side,
            status: output.status.to_string(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| BenchError::Program {
        side,
        source: error.into(),
    })
}

/// Where a side writes its report.
fn report(testbed: &Testbed, name: &str) -> PathBuf {
    testbed.lab.folder().join(format!("{name}.json"))
}

fn read(path: &Path) -> Result<Value, BenchError> {
    fs::read_to_string(path)
        .and_then(|text| serde_json::from_str(&text).map_err(Into::into))
        .map_err(|source| BenchError::File {
            doing: "reading the JSON report",
            path: path.to_owned(),
            source,
        })
}

/// `hikkoshi receive` or `hikkoshi migrate`; killed on drop.
#[derive(Debug)]
struct Side {
    name: &'static str,
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    notices: Receiver<String>,
}

impl Side {
    /// Starts `command`, the program on its host, with these and the common arguments.
    fn start(
        name: &'static str,
        mut command: Command,
        arguments: &[&str],
        vm: Option<&Vm>,
        report: &Path,
        log: Option<&str>,
    ) -> Result<Self, BenchError> {
        let failed = |source| BenchError::Program { side: name, source };
        command.args(arguments);
        // After the name of the subcommand.
        if let Some(vm) = vm {
            command.arg("--qmp").arg(vm.qmp_path());
        }
        let mut child = command
            .envs(log.map(|selected| ("HIKKOSHI_LOG", selected)))
            .args(["--progress", "json"])
            // On a tmpfs, as /run is on a host with systemd.
            .args(["--journal", JOURNAL])
            .arg("--json")
            .arg(report)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let (sender, notices) = channel();
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            std::thread::Builder::new()
                .name(format!("stderr-{name}"))
                .spawn(move || collect(stderr, &said, |notice| drop(sender.send(notice))))
                .map_err(failed)?;
        }
        Ok(Self {
            name,
            child,
            said,
            notices,
        })
    }

    /// Waits until the destination reports that it listens.
    fn wait_listening(&mut self) -> Result<(), BenchError> {
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline {
            match self.notices.recv_timeout(Duration::from_millis(100)) {
                Ok(notice) if notice.contains("waiting for a guest") => return Ok(()),
                Ok(_) => {}
                Err(_) => {
                    if let Some(status) = self.wait(Duration::ZERO)? {
                        return Err(self.ended(status));
                    }
                }
            }
        }
        Err(self.hangs())
    }

    /// The invitation that it prints once it listens.
    fn invitation(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(|source| BenchError::Program {
                    side: self.name,
                    source,
                })?;
        }
        Ok(line.trim().to_owned())
    }

    /// Waits for its exit; `None` when it still runs after `limit`.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, BenchError> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self
                .child
                .try_wait()
                .map_err(|source| BenchError::Program {
                    side: self.name,
                    source,
                })?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends SIGINT, as Ctrl-C does.
    fn interrupt(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have exited just now.
            let _ = kill_process(pid, Signal::INT);
        }
    }

    /// The last reported round.
    fn last_round(&self) -> Option<u64> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().rev().find_map(|line| {
            let value: Value = serde_json::from_str(line).ok()?;
            value["progress"]["round"].as_u64().filter(|&n| n > 0)
        })
    }

    /// What it has reported of the time left: each time from the start, and the estimate then, in
    /// seconds.
    fn time_left(&self) -> Value {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |line: &String| {
            let progress = serde_json::from_str::<Value>(line).ok()?["progress"].take();
            let at_ms = progress["at_ms"].as_f64()?;
            Some(json!({ "at_s": at_ms / 1e3, "left": progress["time_left"] }))
        };
        said.iter().filter_map(of).collect()
    }

    fn log(&self) -> Vec<Value> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter()
            .filter_map(|line| {
                let mut value: Value = serde_json::from_str(line).ok()?;
                Some(value.get_mut("log")?.get_mut("fields")?.take())
            })
            .collect()
    }

    fn stderr_tail(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let from = said.len().saturating_sub(12);
        said[from..].join("\n")
    }

    fn ended(&self, status: ExitStatus) -> BenchError {
        BenchError::Ended {
            side: self.name,
            status: status.to_string(),
            stderr: self.stderr_tail(),
        }
    }

    fn hangs(&self) -> BenchError {
        BenchError::Ended {
            side: self.name,
            status: "no exit status: it still runs".to_owned(),
            stderr: self.stderr_tail(),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stores every line, and passes on the notices.
fn collect(stderr: ChildStderr, said: &Mutex<Vec<String>>, notice: impl Fn(String)) {
    for line in BufReader::new(stderr).lines() {
        let Ok(line) = line else { return };
        if let Ok(value) = serde_json::from_str::<Value>(&line)
            && let Some(text) = value["notice"].as_str()
        {
            notice(text.to_owned());
        }
        said.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }
}
