//! A bench beside the plan: its own cases, which take turns, and the tables of what was measured.

use std::path::Path;

use error_reporter::Report;
use serde::Serialize;

use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::meter::quietest;
use crate::report::{Table, write_file};

/// A bench with cases of its own.
pub(crate) trait Bench {
    /// How `--only` selects it; further words select among its cases. Also the name of the file of
    /// its tables.
    const NAME: &'static str;
    /// Rounds, unless `--rounds` says something else.
    const ROUNDS: u32;

    /// What is measured in each round.
    type Case: Copy;
    /// What one turn of a case has measured.
    type Outcome: Serialize;

    /// Every case.
    fn cases(&self) -> Vec<Self::Case>;
    /// The name of a case for `--only`, which also matches each of its parts between slashes.
    fn label(case: Self::Case) -> String;
    /// Whether a case takes part in this round if the number of rounds is not chosen.
    fn takes_part(_case: Self::Case, _round: u32) -> bool {
        true
    }
    /// Measures a case once.
    ///
    /// # Errors
    /// The move failed, or the guest has lost memory.
    fn measure(
        &self,
        case: Self::Case,
        round: u32,
        program: &Path,
        args: &Args,
    ) -> Result<Self::Outcome, BenchError>;
    /// Processors that other processes used meanwhile.
    fn others_cores(outcome: &Self::Outcome) -> f64;
    /// One outcome, for a person who watches.
    fn line(outcome: &Self::Outcome) -> String;
    /// The tables of all outcomes.
    fn tables(&self, outcomes: &[Self::Outcome]) -> Vec<Table>;
}

/// Everything that was measured, as JSON.
#[derive(Debug, Serialize)]
struct Results<'a, O> {
    host: &'a HostInfo,
    outcomes: &'a [O],
    failures: &'a [String],
}

/// Measures the cases that all lists of `--only` match, and writes the results. A turn that other
/// processes have disturbed, or that failed, is repeated; the least disturbed one counts.
pub(crate) fn run<B: Bench>(bench: &B, args: &Args) -> Result<(), BenchError> {
    let cases = selected(bench, args);
    if args.list {
        for &case in &cases {
            println!("{}: {}", B::NAME, B::label(case));
        }
        return Ok(());
    }
    let program = args.program()?;
    let host = HostInfo::collect(args.congestion.as_deref());
    println!("{host}\n");
    let rounds = args
        .rounds
        .unwrap_or(if args.quick { 1 } else { B::ROUNDS });
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for &case in &cases {
            if args.rounds.is_none() && !B::takes_part(case, round) {
                continue;
            }
            let measured = quietest(
                args,
                || bench.measure(case, round, &program, args),
                |measured| measured.as_ref().map_or(f64::INFINITY, B::others_cores),
            );
            match measured {
                Ok(outcome) => {
                    println!("round {} {}", round + 1, B::line(&outcome));
                    outcomes.push(outcome);
                }
                Err(error) => {
                    let (label, error) = (B::label(case), Report::new(&error));
                    let failure = format!("round {} {label}: {error}", round + 1);
                    println!("{failure}");
                    failures.push(failure);
                }
            }
            // After every turn, so that an interrupted bench keeps its results.
            let results = Results {
                host: &host,
                outcomes: &outcomes,
                failures: &failures,
            };
            let json = serde_json::to_string_pretty(&results).unwrap_or_default();
            write_file(&args.json, &json)?;
        }
    }
    let mut markdown = format!("{host}\n");
    for table in bench.tables(&outcomes) {
        println!("\n{}", table.text());
        markdown.push('\n');
        markdown.push_str(&table.markdown());
    }
    write_file(&args.plots.join(format!("{}.md", B::NAME)), &markdown)?;
    match failures.len() {
        0 => Ok(()),
        failed => Err(BenchError::Failed {
            failed,
            total: failed + outcomes.len(),
        }),
    }
}

fn selected<B: Bench>(bench: &B, args: &Args) -> Vec<B::Case> {
    let is_wanted = |case: &B::Case| {
        let label = B::label(*case);
        let mut lists = args.only.iter().filter(|words| *words != B::NAME);
        lists.all(|words| {
            words
                .split(',')
                .any(|word| word == label || label.split('/').any(|part| part == word))
        })
    };
    bench.cases().into_iter().filter(is_wanted).collect()
}
