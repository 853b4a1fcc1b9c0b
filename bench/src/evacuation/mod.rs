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
use crate::meter::CpuMeter;
use crate::report::Table;
use crate::rounds::{self, Bench};
use crate::testbed::LONG;

/// How `--only` selects this bench.
pub(crate) const NAME: &str = "evacuation";

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

struct Evacuation;

impl Bench for Evacuation {
    const NAME: &'static str = NAME;
    /// So many predictions are compared with what happens.
    const ROUNDS: u32 = 12;

    type Case = Way;
    type Outcome = Evacuated;

    fn cases(&self) -> Vec<Way> {
        Way::ALL.to_vec()
    }

    fn label(way: Way) -> String {
        way.to_string()
    }

    fn takes_part(way: Way, round: u32) -> bool {
        way == Way::Planned || round < LOOP_ROUNDS
    }

    fn measure(
        &self,
        way: Way,
        round: u32,
        program: &Path,
        _args: &Args,
    ) -> Result<Evacuated, BenchError> {
        evacuated(way, round, program)
    }

    fn others_cores(evacuated: &Evacuated) -> f64 {
        evacuated.others_cores
    }

    fn line(evacuated: &Evacuated) -> String {
        table::lines(evacuated)
    }

    fn tables(&self, evacuations: &[Evacuated]) -> Vec<Table> {
        table::tables(evacuations)
    }
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    rounds::run(&Evacuation, args)
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
