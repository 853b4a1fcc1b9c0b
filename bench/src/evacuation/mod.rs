//! Eight guests of one host are moved to three others, over a line of 1 Gbit/s that all moves
//! share: by the plan of `hikkoshi evacuate`, one after the other, and all at once. What was
//! planned is compared with what happened. `--only evacuation` selects it; a further word is a way.
//!
//! Each host is a network namespace; the three have a `hikkoshi daemon` with a certificate. Each
//! guest checks its memory after its move.

mod guests;
mod hosts;
mod table;
pub(crate) mod urgent;
mod ways;

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use self::guests::KINDS;
use self::hosts::Hosts;
use self::ways::{MovedGuest, Way, move_all};
use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::meter::{CpuMeter, wait_until_idle};
use crate::report::write_file;
use crate::testbed::LONG;

/// How `--only` selects this bench.
const NAME: &str = "evacuation";

/// Rounds, unless `--rounds` says something else: so many predictions are compared with what
/// happens.
const ROUNDS: u32 = 12;

/// The loops, with which plans are compared, take part in the first rounds only.
const LOOP_ROUNDS: u32 = 5;

/// One evacuation.
#[derive(Clone, Debug, Serialize)]
struct Evacuated {
    round: u32,
    way: Way,
    /// From the first move to the end of the last one, ms.
    total_ms: f64,
    /// The same, with planning, ms.
    run_ms: f64,
    plan: Option<Value>,
    notices: String,
    guests: Vec<MovedGuest>,
    /// Processors that other processes used meanwhile.
    others_cores: f64,
}

/// Everything that was measured, as JSON.
#[derive(Debug, Serialize)]
struct Results<'a> {
    host: &'a HostInfo,
    evacuations: &'a [Evacuated],
    failures: &'a [String],
}

/// Whether the arguments select this bench.
pub(crate) fn is_selected(args: &Args) -> bool {
    args.only.iter().any(|words| words == NAME)
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let is_wanted = |way: &Way| {
        let mut lists = args.only.iter().filter(|words| *words != NAME);
        lists.all(|words| words.split(',').any(|word| word == way.to_string()))
    };
    let ways: Vec<_> = Way::ALL.into_iter().filter(is_wanted).collect();
    if args.list {
        for way in &ways {
            println!("{NAME}: {way}");
        }
        return Ok(());
    }
    let program = args.program()?;
    let host = HostInfo::collect(None);
    println!("{host}\n");
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS });
    let (mut evacuations, mut failures) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for &way in &ways {
            if way != Way::Planned && args.rounds.is_none() && round >= LOOP_ROUNDS {
                continue;
            }
            wait_until_idle(args.idle_limit());
            match evacuated(way, round, &program) {
                Ok(evacuated) => {
                    println!("{}", table::lines(&evacuated));
                    evacuations.push(evacuated);
                }
                Err(error) => {
                    let error = error_reporter::Report::new(&error);
                    let failure = format!("round {} {way}: {error}", round + 1);
                    println!("{failure}");
                    failures.push(failure);
                }
            }
            // After every evacuation, so that an interrupted bench keeps its results.
            let results = Results {
                host: &host,
                evacuations: &evacuations,
                failures: &failures,
            };
            let json = serde_json::to_string_pretty(&results).unwrap_or_default();
            write_file(&args.json, &json)?;
        }
    }
    let mut markdown = format!("{host}\n");
    for table in table::tables(&evacuations) {
        println!("\n{}", table.text());
        markdown.push('\n');
        markdown.push_str(&table.markdown());
    }
    write_file(&args.plots.join("evacuation.md"), &markdown)?;
    match failures.len() {
        0 => Ok(()),
        failed => Err(BenchError::Failed {
            failed,
            total: failed + evacuations.len(),
        }),
    }
}

/// Boots the guests, moves them, and lets them check their memory.
fn evacuated(way: Way, round: u32, program: &Path) -> Result<Evacuated, BenchError> {
    let mut hosts = Hosts::start(program, &KINDS)?;
    for guest in &hosts.guests {
        guest.source.slow_accesses(LONG)?;
    }
    let mut pids = hosts.pids();
    let meter = CpuMeter::start(&pids);
    let mut moved = move_all(way, &hosts)?;
    let mut guests = Vec::new();
    for guest in std::mem::take(&mut hosts.guests) {
        let kind = guest.kind;
        let record = moved.guests.iter_mut().find(|it| it.guest == kind.name);
        let Some(record) = record else {
            return Err(BenchError::NoSwitch);
        };
        let (source, destination) = hosts.arrived(guest, &record.to)?;
        let slow = destination.slow_accesses(LONG)?;
        #[allow(clippy::cast_precision_loss)] // Far below 2^53.
        let slow_ms = slow.sum_us as f64 / 1e3;
        (record.slow, record.slow_ms) = (slow.count, slow_ms);
        pids.push(destination.pid());
        guests.push((kind, source, destination));
    }
    let others_cores = meter.others_cores(&pids);
    for (kind, _source, destination) in &guests {
        kind.check(destination)?;
    }
    Ok(Evacuated {
        round,
        way,
        total_ms: moved.total_ms,
        run_ms: moved.run_ms,
        plan: moved.plan,
        notices: moved.notices,
        guests: moved.guests,
        others_cores,
    })
}
