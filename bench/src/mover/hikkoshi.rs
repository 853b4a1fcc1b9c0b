//! Moves the guest with hikkoshi: two processes, as on two hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hikkoshi_account::Statistics;
use hikkoshi_lab::{RunningProgram, StandardError, Vm};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value;

use super::outcome::{HikkoshiReport, MoveOutcome, OwnReport, ReportedTimeLeft};
use crate::args::Args;
use crate::error::BenchError;
use crate::plan::Variant;
use crate::testbed::{DomainTestbed, Testbed};

/// How long the destination may take until it listens, and either side until it exits.
const SOON: Duration = Duration::from_secs(30);
/// How long a migration may take that is expected to finish.
const LONG: Duration = Duration::from_secs(300);
/// How often the memory of the two sides is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// The folder for the journals.
const JOURNAL: &str = "/dev/shm/hikkoshi-bench";

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
        let WaitingDestination(receive) = waiting;
        let encrypted = variant.is_encrypted();
        let log = variant.log();
        let (downtime, variant) = (args.max_downtime.to_string(), variant.migrate_words());
        let invitation;
        let mut words = if encrypted {
            invitation = receive.invitation();
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
        let mut memory_mib = [0.0; 2];
        let deadline = Instant::now() + give_up.unwrap_or(LONG);
        let ended = loop {
            for (most, side) in memory_mib.iter_mut().zip([&*migrate, &*receive]) {
                *most = f64::max(*most, side.peak_memory_mib());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = migrate.wait(left.min(LOOK))?;
            if ended.is_some() || left.is_zero() {
                break ended;
            }
        };
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
            report: OwnReport::NONE,
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
        let statistics = read(&self.report)?;
        moved.own_downtime_ms = statistics.account.downtime_ms;
        moved.rounds = Some(statistics.account.rounds.into());
        moved.report = OwnReport::Hikkoshi(Box::new(HikkoshiReport {
            statistics,
            switchover_at_destination: read(&self.received)?.account.switchover,
            time_left: migrate.time_left(),
            memory_mib,
        }));
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

fn read(path: &Path) -> Result<Statistics, BenchError> {
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
    program: RunningProgram,
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
        command.args(arguments);
        // After the name of the subcommand.
        if let Some(vm) = vm {
            command.arg("--qmp").arg(vm.qmp_path());
        }
        command
            .envs(log.map(|selected| ("HIKKOSHI_LOG", selected)))
            .args(["--progress", "json"])
            // On a tmpfs, as /run is on a host with systemd.
            .args(["--journal", JOURNAL])
            .arg("--json")
            .arg(report)
            .stdin(Stdio::null());
        let program = RunningProgram::start(command, StandardError::Read)?;
        Ok(Self { name, program })
    }

    /// Waits until the destination reports that it listens.
    fn wait_listening(&mut self) -> Result<(), BenchError> {
        let listens = |line: &str| line.contains("waiting for a guest").then_some(());
        if self.program.stderr().wait_line(SOON, listens).is_some() {
            return Ok(());
        }
        match self.wait(Duration::ZERO)? {
            Some(status) => Err(self.ended(status)),
            None => Err(self.hangs()),
        }
    }

    /// The invitation that it prints once it listens.
    fn invitation(&self) -> String {
        let line = |line: &str| Some(line.trim().to_owned());
        let line = self.program.stdout().wait_line(SOON, line);
        line.unwrap_or_default()
    }

    /// Waits for its exit; `None` when it still runs after `limit`.
    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, BenchError> {
        let failed = |source| BenchError::Program {
            side: self.name,
            source,
        };
        self.program.wait(limit).map_err(failed)
    }

    /// The most memory that it has used so far, MiB; zero if it has ended.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn peak_memory_mib(&self) -> f64 {
        let path = format!("/proc/{}/status", self.program.pid());
        let status = fs::read_to_string(path).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or(0) as f64 / 1024.0
    }

    /// Sends SIGINT, as Ctrl-C does.
    fn interrupt(&self) {
        // It may have exited just now.
        let _ = self.program.signal(Signal::INT);
    }

    /// What it has written so far in JSON, a value in each line.
    fn values(&self) -> Vec<Value> {
        let text = self.program.stderr().text();
        let values = text.lines().map(serde_json::from_str);
        values.filter_map(Result::ok).collect()
    }

    /// The last reported round.
    fn last_round(&self) -> Option<u64> {
        let rounds = self.values().into_iter().rev();
        let mut rounds = rounds.filter_map(|value| value["progress"]["round"].as_u64());
        rounds.find(|&round| round > 0)
    }

    /// What it has reported of the time left.
    fn time_left(&self) -> Vec<ReportedTimeLeft> {
        let reported = |value: Value| {
            let progress = value.get("progress")?;
            Some(ReportedTimeLeft {
                at_s: progress["at_ms"].as_f64()? / 1e3,
                left: Option::deserialize(&progress["time_left"]).ok()?,
            })
        };
        self.values().into_iter().filter_map(reported).collect()
    }

    /// The fields of each entry of its log so far.
    fn log(&self) -> Vec<Value> {
        let fields = |value: Value| Some(value.get("log")?.get("fields")?.clone());
        self.values().into_iter().filter_map(fields).collect()
    }

    fn ended(&self, status: ExitStatus) -> BenchError {
        BenchError::Ended {
            side: self.name,
            status: status.to_string(),
            stderr: self.program.stderr().tail(12),
        }
    }

    fn hangs(&self) -> BenchError {
        BenchError::Ended {
            side: self.name,
            status: "no exit status: it still runs".to_owned(),
            stderr: self.program.stderr().tail(12),
        }
    }
}
