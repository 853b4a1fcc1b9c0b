//! The ways in which the guests are moved: by the plan of `hikkoshi evacuate`, or by the loop of
//! `hikkoshi migrate` that an operator writes.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_account::Statistics;
use hikkoshi_lab::RunningProgram;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::hosts::{Hosts, start};
use crate::error::BenchError;

/// How long all moves together may take.
const LONG: Duration = Duration::from_secs(600);
/// How often it is looked which of several moves have ended.
const POLL: Duration = Duration::from_millis(10);

/// How the guests are moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// `hikkoshi evacuate`.
    Planned,
    /// One `hikkoshi migrate` after the other, in the order of the guests' names.
    OneByOne,
    /// One `hikkoshi migrate` for each guest, all at the same time.
    AllAtOnce,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Planned, Self::OneByOne, Self::AllAtOnce];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Planned => "planned",
            Self::OneByOne => "one-by-one",
            Self::AllAtOnce => "all-at-once",
        })
    }
}

/// What has become of a guest. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MovedGuest {
    pub(super) guest: String,
    pub(super) to: String,
    /// When its last move began, from the first move on.
    pub(super) begins_ms: f64,
    /// From there to its end.
    pub(super) total_ms: f64,
    /// How often moving it was begun.
    pub(super) attempts: u64,
    pub(super) downtime_ms: f64,
    /// The downtime, and the time of page faults.
    pub(super) felt_ms: f64,
    /// What was planned for it.
    pub(super) planned: Option<Value>,
    /// Slow accesses that the guest itself has measured, until its memory was checked, and their
    /// time.
    pub(super) slow: u64,
    pub(super) slow_ms: f64,
}

/// All guests, moved.
#[derive(Clone, Debug)]
pub(super) struct AllMoved {
    pub(super) guests: Vec<MovedGuest>,
    /// From the first move to the end of the last one.
    pub(super) total_ms: f64,
    /// The same, with planning.
    pub(super) run_ms: f64,
    /// The plan, if there was one.
    pub(super) plan: Option<Value>,
    /// What hikkoshi has said meanwhile.
    pub(super) notices: String,
}

/// Moves all guests.
pub(super) fn move_all(way: Way, hosts: &Hosts) -> Result<AllMoved, BenchError> {
    match way {
        Way::Planned => planned(hosts),
        Way::OneByOne => by_loop(hosts, 1),
        Way::AllAtOnce => by_loop(hosts, hosts.guests.len()),
    }
}

/// What is read of the result of `hikkoshi evacuate`.
#[derive(Debug, Deserialize)]
struct EvacuationResult {
    guests: Vec<EvacuatedGuest>,
    total_ms: f64,
    run_ms: f64,
    plan: Value,
}

#[derive(Debug, Deserialize)]
struct EvacuatedGuest {
    guest: String,
    to: String,
    begins_ms: f64,
    ends_ms: f64,
    attempts: u64,
    downtime_ms: f64,
    felt_ms: f64,
}

fn planned(hosts: &Hosts) -> Result<AllMoved, BenchError> {
    let mut command = hosts.command("evacuate");
    for guest in &hosts.guests {
        let socket = guest.source.qmp_path().display();
        command.arg(format!("{}={socket}", guest.kind.name));
    }
    let file = hosts.file("evacuation");
    command.args(["--to", &hosts.addresses().join(","), "--json"]);
    command.arg(&file);
    let mut program = start(command)?;
    wait(&mut program, "evacuate")?;
    let result: EvacuationResult = read(&file)?;
    let moves = result.plan["moves"].as_array().cloned().unwrap_or_default();
    let guests = result.guests.into_iter().map(|it| MovedGuest {
        begins_ms: it.begins_ms,
        total_ms: it.ends_ms - it.begins_ms,
        attempts: it.attempts,
        downtime_ms: it.downtime_ms,
        felt_ms: it.felt_ms,
        planned: moves
            .iter()
            .find(|planned| planned["guest"] == it.guest.as_str())
            .cloned(),
        guest: it.guest,
        to: it.to,
        slow: 0,
        slow_ms: 0.0,
    });
    Ok(AllMoved {
        guests: guests.collect(),
        total_ms: result.total_ms,
        run_ms: result.run_ms,
        plan: Some(result.plan),
        notices: program.stderr().text(),
    })
}

/// A move of the loop.
struct Move {
    guest: usize,
    to: String,
    began: Instant,
    program: RunningProgram,
}

fn by_loop(hosts: &Hosts, at_once: usize) -> Result<AllMoved, BenchError> {
    let addresses = hosts.addresses();
    let begun = Instant::now();
    let (mut next, mut running, mut guests) = (0, Vec::<Move>::new(), Vec::new());
    while next < hosts.guests.len() || !running.is_empty() {
        while next < hosts.guests.len() && running.len() < at_once {
            let guest = &hosts.guests[next];
            // To each host in turn.
            let to = addresses[next % addresses.len()].clone();
            let mut command = hosts.command("migrate");
            command.arg("--qmp").arg(guest.source.qmp_path());
            command.args([&to, "--name", guest.kind.name, "--json"]);
            command.arg(hosts.file(guest.kind.name));
            command.args(["--progress", "none"]);
            let began = Instant::now();
            running.push(Move {
                guest: next,
                to,
                began,
                program: start(command)?,
            });
            next += 1;
        }
        let mut left = Vec::new();
        for mut it in running {
            match it.program.wait(Duration::ZERO) {
                Ok(None) => left.push(it),
                _ => {
                    let total_ms = it.began.elapsed().as_secs_f64() * 1e3;
                    wait(&mut it.program, "migrate")?;
                    guests.push(moved(hosts, it, begun, total_ms)?);
                }
            }
        }
        running = left;
        std::thread::sleep(POLL);
    }
    let total_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(AllMoved {
        guests,
        total_ms,
        run_ms: total_ms,
        plan: None,
        notices: String::new(),
    })
}

fn moved(hosts: &Hosts, it: Move, begun: Instant, total_ms: f64) -> Result<MovedGuest, BenchError> {
    let name = hosts.guests[it.guest].kind.name;
    let statistics: Statistics = read(&hosts.file(name))?;
    let account = &statistics.account;
    let waits = &account.requests.request_latency_us;
    let downtime_ms = account.downtime_ms.unwrap_or(f64::NAN);
    #[allow(clippy::cast_precision_loss)] // Far below 2^53.
    let waited_ms = waits.count as f64 * waits.mean / 1e3;
    Ok(MovedGuest {
        guest: name.to_owned(),
        begins_ms: (it.began - begun).as_secs_f64() * 1e3,
        to: it.to,
        total_ms,
        attempts: 1,
        downtime_ms,
        // It has one processor.
        felt_ms: downtime_ms + waited_ms,
        planned: None,
        slow: 0,
        slow_ms: 0.0,
    })
}

/// Waits until it has ended, and succeeded.
pub(super) fn wait(program: &mut RunningProgram, side: &'static str) -> Result<(), BenchError> {
    let status = program.wait(LONG);
    let status = status.map_err(|source| BenchError::Program { side, source })?;
    match status {
        Some(status) if status.success() => Ok(()),
        other => Err(BenchError::Ended {
            side,
            status: other.map_or_else(|| "no exit status".to_owned(), |it| it.to_string()),
            stderr: program.stderr().tail(30),
        }),
    }
}

/// Reads a result.
pub(super) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, BenchError> {
    fs::read_to_string(path)
        .and_then(|text| serde_json::from_str(&text).map_err(Into::into))
        .map_err(|source| BenchError::File {
            doing: "reading the result in",
            path: path.to_owned(),
            source,
        })
}
