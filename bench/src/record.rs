//! Everything that was measured, as it is written.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Args;
use crate::error::BenchError;
use crate::latency::Accesses;
use crate::machine::Machine;
use crate::plan::{Case, LineKind, Plan, RAM_MIB, REPORT_MS, SLOW_US, WORKING_SET_MIB};
use crate::{reach, table};

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// `LINE/WORKLOAD/SYSTEM`.
    pub label: String,
    /// What was measured.
    pub case: Case,
    /// From 0 on.
    pub round: u32,
    /// Why there are no numbers.
    pub failure: Option<String>,
    /// Pre-copy did not converge within the time given, and was called off.
    pub called_off: bool,
    /// From the source's `STOP` to the destination's `RESUME`, ms.
    pub downtime_ms: Option<f64>,
    /// The system's own figure of it, ms.
    pub own_downtime_ms: Option<f64>,
    /// From the command to the last page received, ms.
    pub total_ms: Option<f64>,
    /// On the line, both directions, with all headers.
    pub bytes: Option<u64>,
    /// Rounds of pre-copy, as the system counts them.
    pub rounds: Option<u64>,
    /// The guest's accesses from the switch to the last page.
    pub accesses: Option<Accesses>,
    /// The guest's accesses a second before the move.
    pub accesses_per_second_before: Option<f64>,
    /// Processors that others kept busy meanwhile.
    pub others_cores: f64,
    /// Processor time of both QEMUs and hikkoshi from the command to the last page, s.
    pub cpu_seconds: f64,
    /// The system's own account.
    pub account: Value,
}

impl Run {
    /// Nothing measured yet.
    pub fn new(case: &Case, round: u32) -> Self {
        Self {
            label: case.to_string(),
            case: *case,
            round,
            failure: None,
            called_off: false,
            downtime_ms: None,
            own_downtime_ms: None,
            total_ms: None,
            bytes: None,
            rounds: None,
            accesses: None,
            accesses_per_second_before: None,
            others_cores: 0.0,
            cpu_seconds: 0.0,
            account: Value::Null,
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<32}", self.label)?;
        if let Some(failure) = &self.failure {
            return write!(f, " FAILED: {failure}");
        }
        if self.called_off {
            write!(f, " called off, does not converge;")?;
        }
        if let Some(downtime) = self.downtime_ms {
            write!(f, " downtime {downtime:.1} ms")?;
        }
        if let Some(own) = self.own_downtime_ms {
            write!(f, " (own {own:.1})")?;
        }
        if let Some(total) = self.total_ms {
            write!(f, ", total {:.2} s", total / 1e3)?;
        }
        if let Some(accesses) = self
            .accesses
            .as_ref()
            .filter(|_| self.case.system.is_postcopy())
        {
            write!(
                f,
                ", {} faults of {:.0} µs, {:.0} accesses/s",
                accesses.slow,
                accesses.slow_mean_us,
                accesses.per_second.unwrap_or(0.0)
            )?;
        }
        if let Some(rounds) = self.rounds {
            write!(f, ", {rounds} rounds")?;
        }
        write!(f, ", others {:.2} cores", self.others_cores)
    }
}

/// All of it.
#[derive(Debug)]
pub struct Record {
    /// What it was measured on.
    pub machine: Machine,
    /// The runs so far.
    pub runs: Vec<Run>,
    setup: Value,
}

impl Record {
    /// Before the first run.
    ///
    /// # Errors
    /// When the file to write cannot be written: better now than after an hour.
    pub fn begin(args: &Args, plan: &Plan) -> Result<Self, BenchError> {
        let lines: Vec<_> = plan
            .cases
            .chunk_by(|a, b| a.line == b.line)
            .filter_map(|cases| cases.first())
            .map(|case| line(case.line))
            .collect();
        let record = Self {
            machine: Machine::look(args.congestion.as_deref()),
            runs: Vec::new(),
            setup: json!({
                "guest": {
                    "ram_mib": RAM_MIB,
                    "ram": "memory-backend-file on tmpfs, share=on, for all systems",
                    "processors": 1,
                    "accelerator": "tcg",
                    "workload": "dirty",
                    "working_set_mib": WORKING_SET_MIB,
                    "slow_us": SLOW_US,
                    "report_ms": REPORT_MS,
                },
                "lines": lines,
                "max_downtime_ms": args.max_downtime,
                "give_up_s": args.give_up,
            }),
        };
        record.write(&args.json)?;
        Ok(record)
    }

    /// Writes what there is.
    ///
    /// # Errors
    /// When that fails.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let value = json!({
            "machine": self.machine,
            "setup": self.setup,
            "summary": table::rows(&self.runs),
            "reach": reach::goals(&self.runs),
            "runs": self.runs,
        });
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(path, format!("{value:#}\n")));
        written.map_err(|source| BenchError::File {
            doing: "writing",
            path: path.to_owned(),
            source,
        })
    }
}

fn line(kind: LineKind) -> Value {
    match kind.shape() {
        None => json!({ "name": kind.to_string(), "shape": null }),
        Some(shape) => json!({
            "name": kind.to_string(),
            "shape": {
                "by": "tc tbf, both directions",
                "rate_bits": shape.rate_bits,
                "burst_bytes": shape.burst_bytes,
                "latency_ms": u64::try_from(shape.latency.as_millis()).unwrap_or(u64::MAX),
            },
        }),
    }
}
