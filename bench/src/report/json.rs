//! The JSON file with all results.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use super::goals::goals;
use super::medians::rows;
use super::write_file;
use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::plan::{Case, NetworkKind, Plan, RAM_MIB, REPORT_MS, SLOW_US, WORKING_SET_MIB};
use crate::record::Run;

/// The JSON file with all results.
#[derive(Debug)]
pub(crate) struct ResultFile {
    /// The host that the bench runs on.
    pub host: HostInfo,
    /// The runs so far.
    pub runs: Vec<Run>,
    setup: Value,
}

impl ResultFile {
    /// Writes the file before the first run, or reads it, to continue it.
    ///
    /// # Errors
    /// When the file cannot be written: better now than after an hour. When it is of another
    /// revision or host than this one.
    pub(crate) fn begin(args: &Args, plan: &Plan) -> Result<Self, BenchError> {
        let mut networks: Vec<NetworkKind> = Vec::new();
        for case in &plan.cases {
            if !networks.contains(&case.network) {
                networks.push(case.network);
            }
        }
        let networks: Vec<_> = networks.into_iter().map(network).collect();
        let host = HostInfo::collect(args.congestion.as_deref());
        let runs = match args.resume {
            true if args.json.exists() => earlier_runs(&args.json, &host)?,
            _ => Vec::new(),
        };
        let file = Self {
            host,
            runs,
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
                "nano_guest": {
                    "ram_mib": RAM_MIB,
                    "ram": "memory-backend-file on tmpfs, share=on, for all systems",
                    "processors": 1,
                    "accelerator": "kvm",
                    "report_ms": REPORT_MS,
                },
                "lines": networks,
                "max_downtime_ms": args.max_downtime,
                "give_up_s": args.give_up,
            }),
        };
        file.write(&args.json)?;
        Ok(file)
    }

    /// Whether a case was measured in this round.
    pub(crate) fn has(&self, round: u32, case: &Case) -> bool {
        let label = case.to_string();
        let mut runs = self.runs.iter();
        runs.any(|run| run.failure.is_none() && run.round == round && run.label == label)
    }

    /// Writes the results so far.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), BenchError> {
        let value = json!({
            "machine": self.host,
            "setup": self.setup,
            "summary": rows(&self.runs),
            "reach": goals(&self.runs),
            "runs": self.runs,
        });
        write_file(path, &format!("{value:#}\n"))
    }
}

/// The successful runs in a file of results, which must be of this host.
fn earlier_runs(path: &Path, host: &HostInfo) -> Result<Vec<Run>, BenchError> {
    #[derive(Deserialize)]
    struct Earlier {
        machine: HostInfo,
        runs: Vec<Run>,
    }
    let file = |doing| {
        move |source| BenchError::File {
            doing,
            path: path.to_owned(),
            source,
        }
    };
    let text = std::fs::read(path).map_err(file("reading the results in"))?;
    let earlier: Earlier = serde_json::from_slice(&text)
        .map_err(|error| file("reading the results in")(error.into()))?;
    match earlier.machine.difference(host) {
        Some((what, theirs, ours)) => Err(BenchError::Mixed {
            path: path.to_owned(),
            what,
            theirs,
            ours,
        }),
        None => {
            let good = earlier.runs.into_iter();
            Ok(good.filter(|run| run.failure.is_none()).collect())
        }
    }
}

fn network(kind: NetworkKind) -> Value {
    match kind.rate_limit() {
        None => json!({ "name": kind.to_string(), "shape": null }),
        Some(rate_limit) => json!({
            "name": kind.to_string(),
            "shape": {
                "by": match kind {
                    NetworkKind::GbitPerFlow(_) => "tc htb, a class for each connection, both directions",
                    _ => "tc tbf, both directions",
                },
                "rate_bits": rate_limit.rate_bits,
                "burst_bytes": rate_limit.burst_bytes,
                "latency_ms": u64::try_from(rate_limit.latency.as_millis()).unwrap_or(u64::MAX),
            },
        }),
    }
}
