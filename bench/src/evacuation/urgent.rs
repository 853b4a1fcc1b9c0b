//! How long a guest in post-copy waits for a page, while other guests are moved over the same line:
//! `--only urgent`.
//!
//! The guest checks and writes pages at random. It is alone on the line; or it is alone with a
//! third of the line for its background pages; or two guests are moved by pre-copy meanwhile, each
//! of the three with a third, as `hikkoshi evacuate` divides the line; or these are not limited.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use hikkoshi_account::Statistics;
use hikkoshi_lab::RunningProgram;
use serde::Serialize;

use super::guests::{Kind, MEASURED, OTHERS};
use super::hosts::{Hosts, start};
use super::table::spread;
use super::ways::{read, wait};
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::CpuMeter;
use crate::report::Table;
use crate::rounds::{self, Bench};
use crate::testbed::LONG;

/// How `--only` selects this bench.
pub(crate) const NAME: &str = "urgent";

/// A third of 95 % of what the line carries.
const THIRD: &str = "36M";

/// How long the others are moved before the guest is.
const AHEAD: Duration = Duration::from_millis(1500);

/// What else is on the line.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Others {
    /// Nothing.
    Alone,
    /// Nothing, and the guest's own background has a third of the line.
    AloneWithAThird,
    /// Two other moves; all three have a third.
    Divided,
    /// Two other moves; none has a limit.
    Unlimited,
}

impl Others {
    const ALL: [Self; 4] = [
        Self::Alone,
        Self::AloneWithAThird,
        Self::Divided,
        Self::Unlimited,
    ];

    /// The name in filters.
    fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::AloneWithAThird => "alone-with-a-third",
            Self::Divided => "divided",
            Self::Unlimited => "unlimited",
        }
    }

    fn are_there(self) -> bool {
        matches!(self, Self::Divided | Self::Unlimited)
    }

    fn is_limited(self) -> bool {
        matches!(self, Self::AloneWithAThird | Self::Divided)
    }
}

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "alone",
            Self::AloneWithAThird => "alone, with a third",
            Self::Divided => "two others, each a third",
            Self::Unlimited => "two others, no limits",
        })
    }
}

/// One move of the guest.
#[derive(Clone, Debug, Serialize)]
struct Waited {
    round: u32,
    others: Others,
    requests: u64,
    mean_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Slow accesses that the guest itself has measured, and their mean.
    slow: u64,
    slow_mean_us: f64,
    total_ms: f64,
    /// Processors that other processes used meanwhile.
    others_cores: f64,
}

struct Urgent;

impl Bench for Urgent {
    const NAME: &'static str = NAME;
    const ROUNDS: u32 = 5;

    type Case = Others;
    type Outcome = Waited;

    fn cases(&self) -> Vec<Others> {
        Others::ALL.to_vec()
    }

    fn label(others: Others) -> String {
        others.name().to_owned()
    }

    fn measure(
        &self,
        others: Others,
        round: u32,
        program: &Path,
        _args: &Args,
    ) -> Result<Waited, BenchError> {
        waited(others, round, program)
    }

    fn others_cores(waited: &Waited) -> f64 {
        waited.others_cores
    }

    fn line(waited: &Waited) -> String {
        format!(
            "{}: {} requests, mean {:.0} µs, p99 {:.0} µs, max {:.0} µs; the guest: {} slow accesses, \
             mean {:.0} µs; total {:.0} ms, others {:.2}",
            waited.others,
            waited.requests,
            waited.mean_us,
            waited.p99_us,
            waited.max_us,
            waited.slow,
            waited.slow_mean_us,
            waited.total_ms,
            waited.others_cores
        )
    }

    fn tables(&self, all: &[Waited]) -> Vec<Table> {
        vec![table(all)]
    }
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    rounds::run(&Urgent, args)
}

fn waited(others: Others, round: u32, program: &Path) -> Result<Waited, BenchError> {
    let kinds = [&[MEASURED][..], &OTHERS].concat();
    let mut hosts = Hosts::start(program, &kinds)?;
    let addresses = hosts.addresses();
    let migrate = |kind: &Kind, mode: &str, to: &str| -> Result<RunningProgram, BenchError> {
        let guest = hosts.guests.iter().find(|it| it.kind.name == kind.name);
        let mut command = hosts.command("migrate");
        if let Some(guest) = guest {
            command.arg("--qmp").arg(guest.source.qmp_path());
        }
        command.args([to, "--name", kind.name, "--mode", mode]);
        command.args(["--compress", "off", "--progress", "none", "--json"]);
        command.arg(hosts.file(kind.name));
        if others.is_limited() {
            command.args(["--bandwidth", THIRD]);
        }
        start(command)
    };
    let mut pids = hosts.pids();
    let meter = CpuMeter::start(&pids);
    let mut running = Vec::new();
    if others.are_there() {
        for (kind, to) in OTHERS.iter().zip(&addresses[1..]) {
            running.push(migrate(kind, "precopy", to)?);
        }
        std::thread::sleep(AHEAD);
    }
    hosts.guests[0].source.slow_accesses(LONG)?;
    wait(
        &mut migrate(&MEASURED, "postcopy", &addresses[0])?,
        "migrate",
    )?;
    let statistics: Statistics = read(&hosts.file(MEASURED.name))?;
    let account = statistics.account;
    for it in &mut running {
        wait(it, "migrate")?;
    }
    let moved = 1 + running.len();
    let guests: Vec<_> = hosts.guests.drain(..moved).collect();
    let mut arrived = Vec::new();
    for (guest, to) in guests.into_iter().zip(&addresses) {
        let kind = guest.kind;
        let (_source, destination) = hosts.arrived(guest, to)?;
        pids.push(destination.pid());
        arrived.push((kind, destination));
    }
    let others_cores = meter.others_cores(&pids);
    let slow = arrived[0].1.slow_accesses(LONG)?;
    for (kind, guest) in &arrived {
        kind.check(guest)?;
    }
    let latency = account.requests.request_latency_us;
    #[allow(clippy::cast_precision_loss)] // Far below 2^53.
    Ok(Waited {
        round,
        others,
        requests: latency.count,
        mean_us: latency.mean,
        p99_us: latency.p99,
        max_us: latency.max,
        slow: slow.count,
        slow_mean_us: slow.sum_us as f64 / slow.count.max(1) as f64,
        total_ms: account.total_ms,
        others_cores,
    })
}

#[allow(clippy::cast_precision_loss)] // Far below 2^53.
fn table(all: &[Waited]) -> Table {
    let row = |others: Others| {
        let of = |value: &dyn Fn(&Waited) -> f64, digits| {
            let own = all.iter().filter(|it| it.others == others);
            spread(own.map(value).collect(), digits)
        };
        vec![
            others.to_string(),
            of(&|it| it.requests as f64, 0),
            of(&|it| it.mean_us, 0),
            of(&|it| it.p99_us, 0),
            of(&|it| it.max_us, 0),
            of(&|it| it.slow_mean_us, 0),
            of(&|it| it.total_ms / 1e3, 1),
            of(&|it| it.others_cores, 2),
        ]
    };
    Table {
        title: "a guest in post-copy: medians, with the least and the most".to_owned(),
        words: false,
        head: vec![
            "on the line",
            "page requests",
            "mean, µs",
            "p99, µs",
            "most, µs",
            "slow accesses in the guest, mean, µs",
            "total, s",
            "others, cores",
        ],
        lines: Others::ALL.into_iter().map(row).collect(),
    }
}
