//! Compares hikkoshi with QEMU's own migration, and with libvirt's: same guest, same memory, same
//! network, in turns.
//!
//! **Model.** A [`plan::Case`] is a network, a workload and a *system*: one of hikkoshi's three
//! modes, of QEMU's four or of libvirt's two; for hikkoshi also a *variant*, with one policy
//! disabled or set. [`measure`] boots a fresh [`testbed`] for it, lets the guest work, moves it
//! with [`mover`], and lets the guest check its memory. The result is a [`record::Run`], filled
//! from the instruments in [`meter`]. Two kinds of workload are measured differently: in a scan the
//! guest reads memory that is not there yet; in a web run 128 clients request files from the guest
//! while it is moved. The workloads `nano-…` have the nano guest under KVM, with asynchronous page
//! faults or without. The guest of `libvirt` is a domain, on two hosts with libvirt daemons. The
//! cases run in rounds (A B C … A B C …), so that a slow minute of the machine affects all of them.
//! [`report`] prints medians over the rounds, compares them with the project's goals, and draws
//! plots.
//!
//! **How it is measured** is described in `docs/benchmarks.md`. In short: *downtime* is from the
//! source's `STOP` event to the destination's `RESUME`, by the clock of the one host, for every
//! system; *total* is from the command to the last page; *bytes* are the network's own counters,
//! both directions; *fault latency* is what the guest measures: the mean of its slow accesses from
//! the switchover until all pages are received.
//!
//! [`dirty_rate`] is a bench of its own, without a migration (`--only dirty-rate`), and so is
//! [`estimate`], which compares predictions with what happens (`--only estimate`), and [`disks`],
//! which moves guests whose disks are copied (`--only disks`), [`throughput`], which measures how
//! long the pages of an idle guest take, and what they cost (`--only throughput`), and
//! [`evacuation`], which empties a host (`--only evacuation`), or measures how long one guest waits
//! for pages while others are moved (`--only urgent`).
//!
//! # Layers
//!
//! A module uses only those in lines below its own:
//!
//! ```text
//! dirty_rate  disks  estimate  evacuation  throughput
//! rounds
//! measure  report
//! record
//! mover
//! testbed  meter
//! plan
//! args  host_info
//! error
//! ```
//!
//! **What is missing.** Most guests have one virtual processor. All but the nano guest are
//! emulated. The `verify` workload and huge pages of 1 GiB are covered by the tests only.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a program for people

mod args;
mod dirty_rate;
mod disks;
mod error;
mod estimate;
mod evacuation;
mod host_info;
mod measure;
mod meter;
mod mover;
mod plan;
mod record;
mod report;
mod rounds;
mod testbed;
mod throughput;

use std::process::ExitCode;

use clap::Parser;
use error_reporter::Report;

use crate::args::Args;
use crate::error::BenchError;
use crate::record::Run;
use crate::report::ResultFile;

fn main() -> ExitCode {
    match run_plan(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {}", Report::new(error));
            ExitCode::FAILURE
        }
    }
}

/// How `--only` selects a bench, and what runs it.
type OtherBench = (&'static str, fn(&Args) -> Result<(), BenchError>);

/// The benches that are no case of the plan.
const OTHERS: [OtherBench; 6] = [
    (dirty_rate::NAME, dirty_rate::run),
    (estimate::NAME, estimate::run),
    (disks::NAME, disks::run),
    (evacuation::NAME, evacuation::run),
    (evacuation::urgent::NAME, evacuation::urgent::run),
    (throughput::NAME, throughput::run),
];

fn run_plan(args: &Args) -> Result<(), BenchError> {
    for (name, run) in OTHERS {
        if args.only.iter().any(|words| words == name) {
            return match args.resume {
                true => Err(BenchError::NotResumed),
                false => run(args),
            };
        }
    }
    let plan = plan::Plan::new(args)?;
    if args.list {
        for case in &plan.cases {
            println!("{case}");
        }
        return Ok(());
    }
    let program = args.program()?;
    let mut results = ResultFile::begin(args, &plan)?;
    let total = plan.turns().count();
    println!("{}\n", results.host);
    for (turn, (round, case)) in plan.turns().enumerate() {
        if results.has(round, case) {
            continue;
        }
        let run = attempt(args, &program, round, case);
        println!("[{}/{total}] round {} {}", turn + 1, round + 1, run);
        results.runs.push(run);
        // After every run, so that an interrupted bench keeps its results.
        results.write(&args.json)?;
    }
    for table in report::tables(&results.runs) {
        println!("\n{}", table.text());
    }
    let goals = report::goals_table(&results.runs);
    if !goals.lines.is_empty() {
        println!("{}", goals.text());
    }
    report::write_plots(&args.plots, &results.host, &results.runs)?;
    println!(
        "every run is in {}, plots and tables are in {}",
        args.json.display(),
        args.plots.display()
    );
    match results
        .runs
        .iter()
        .filter(|run| run.failure.is_some())
        .count()
    {
        0 => Ok(()),
        failed => Err(BenchError::Failed { failed, total }),
    }
}

/// Measures a case, and repeats it while other processes use the machine; the run with the least
/// interference counts.
fn attempt(args: &Args, program: &std::path::Path, round: u32, case: &plan::Case) -> Run {
    meter::quietest(
        args,
        || measure::measure(case, program, round, args),
        |run| match run.failure {
            None => run.others_cores,
            Some(_) => f64::INFINITY,
        },
    )
}
