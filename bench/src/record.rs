//! Everything that was measured, as it is written.

use std::fmt;
use std::fs;
use std::path::Path;

use hikkoshi_lab::Slow;
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Args;
use crate::client::Span;
use crate::disk::DiskOutcome;
use crate::error::BenchError;
use crate::latency::Accesses;
use crate::machine::Machine;
use crate::plan::{Case, LineKind, Plan, RAM_MIB, REPORT_MS, SLOW_US, WORKING_SET_MIB};
use crate::run::Moved;
use crate::scan::ScanOutcome;
use crate::web::WebOutcome;
use crate::{reach, table};

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// `LINE/WORKLOAD/SYSTEM[/VARIANT]`.
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
    /// The slow accesses of post-copy, finely.
    pub slow: Option<SlowAccesses>,
    /// Bytes a second on the line: from the switch to the last page, or, in pre-copy, until the
    /// switch.
    pub throughput: Option<f64>,
    /// The scan.
    pub scan: Option<ScanOutcome>,
    /// The disk.
    pub disk: Option<DiskOutcome>,
    /// The clients of the web server.
    pub web: Option<WebOutcome>,
    /// What it looked like over time.
    pub series: Series,
    /// The system's own account.
    pub account: Value,
}

/// Over time, in seconds from the switch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// When the last page was there.
    pub ended: f64,
    /// Accesses of the guest a second.
    pub accesses: Vec<(f64, f64)>,
    /// Bytes on the line a second, from the source.
    pub bytes: Vec<(f64, f64)>,
}

/// Accesses that were slow between the switch and the end, as the guest counted them.
#[derive(Clone, Debug, Serialize)]
pub struct SlowAccesses {
    /// How many.
    pub count: u64,
    /// Their mean, µs.
    pub mean_us: f64,
    /// Half took less, to an eighth.
    pub p50_us: Option<f64>,
    /// 99 in 100 took less, to an eighth.
    pub p99_us: Option<f64>,
    /// So many below so many µs, and not below the bound before.
    pub histogram: Vec<(f64, u64)>,
}

impl From<Slow> for SlowAccesses {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn from(slow: Slow) -> Self {
        Self {
            count: slow.count,
            mean_us: slow.sum_us as f64 / slow.count.max(1) as f64,
            p50_us: slow.fine.below_us(0.5),
            p99_us: slow.fine.below_us(0.99),
            histogram: slow.fine.buckets().collect(),
        }
    }
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
            slow: None,
            throughput: None,
            scan: None,
            disk: None,
            web: None,
            series: Series::default(),
            account: Value::Null,
        }
    }

    /// Notes how the move went.
    pub fn take(&mut self, moved: &Moved) {
        self.called_off = moved.called_off;
        self.own_downtime_ms = moved.own_downtime_ms;
        self.total_ms = Some((moved.ended - moved.started).as_secs_f64() * 1e3);
        self.rounds = moved.rounds;
        self.account = moved.account.clone();
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36}", self.label)?;
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
        if let Some(slow) = &self.slow {
            write!(f, ", p99 {:.0} µs", slow.p99_us.unwrap_or(0.0))?;
        }
        if let Some(rounds) = self.rounds {
            write!(f, ", {rounds} rounds")?;
        }
        if let Some(scan) = &self.scan {
            let (seconds, rate) = (scan.ms / 1e3, scan.pages_per_second());
            write!(
                f,
                " {seconds:.2} s, {rate:.0} pages/s, the processor ran {:.2}",
                scan.ran
            )?;
        }
        if let Some(disk) = &self.disk {
            let mb = |rate: Option<f64>| rate.unwrap_or(0.0) / 1e6;
            write!(
                f,
                ", disk {:.1} then {:.1} MB/s, {} drains of {:.1} ms in all, {} bad pages",
                mb(disk.before),
                mb(disk.during),
                disk.drains.unwrap_or(0),
                disk.drains_ms.unwrap_or(0.0),
                disk.bad_pages
            )?;
        }
        if let Some(web) = &self.web {
            for (phase, span) in [
                ("before", web.before),
                ("until the switch", web.until_switch),
                ("until the end", web.until_end),
                ("after", web.after),
            ] {
                if let Some(span) = span {
                    let Span {
                        p50_ms,
                        p99_ms,
                        max_ms,
                        ..
                    } = span;
                    write!(f, "; {phase} {p50_ms:.0}/{p99_ms:.0}/{max_ms:.0} ms")?;
                }
            }
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
        let mut lines: Vec<LineKind> = Vec::new();
        for case in &plan.cases {
            if !lines.contains(&case.line) {
                lines.push(case.line);
            }
        }
        let lines: Vec<_> = lines.into_iter().map(line).collect();
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
                "by": match kind {
                    LineKind::GbitPerFlow(_) => "tc htb, a class for each connection, both directions",
                    _ => "tc tbf, both directions",
                },
                "rate_bits": shape.rate_bits,
                "burst_bytes": shape.burst_bytes,
                "latency_ms": u64::try_from(shape.latency.as_millis()).unwrap_or(u64::MAX),
            },
        }),
    }
}
