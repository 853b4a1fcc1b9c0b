//! How many bytes of guest memory a second, and for how much processor time: pre-copy and post-copy
//! by hikkoshi beside QEMU's pre-copy, multifd and post-copy with preemption. `--only throughput`
//! selects it; further words select cases.
//!
//! The guest is idle: nothing is sent twice. Its memory holds random content, which cannot be
//! compressed, or content that can. It checks every byte after the move.

mod case;
mod moved;
mod table;

use serde::Serialize;

use self::case::Case;
use self::moved::{Moved, Sizes, moved};
use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::meter::quietest;
use crate::report::write_file;

/// How `--only` selects this bench.
const NAME: &str = "throughput";

/// Rounds, unless `--rounds` says something else.
const ROUNDS: u32 = 5;

impl Sizes {
    /// 2 GiB, or less with `--quick`.
    fn from_args(args: &Args) -> Self {
        match args.quick {
            true => Self {
                memory_mib: 512,
                filled_mib: 320,
            },
            false => Self {
                memory_mib: 2304,
                filled_mib: 2048,
            },
        }
    }
}

/// Everything that was measured, as JSON.
#[derive(Debug, Serialize)]
struct Results<'a> {
    host: &'a HostInfo,
    sizes: Sizes,
    moves: &'a [Moved],
    failures: &'a [String],
}

/// Whether the arguments select this bench.
pub(crate) fn is_selected(args: &Args) -> bool {
    args.only.iter().any(|words| words == NAME)
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let cases = selected(args);
    if args.list {
        for case in &cases {
            println!("{NAME}: {case}");
        }
        return Ok(());
    }
    let program = args.program()?;
    let host = HostInfo::collect(args.congestion.as_deref());
    let sizes = Sizes::from_args(args);
    println!("{host}\n");
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS });
    let (mut moves, mut failures) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for &case in &cases {
            match attempt(case, round, sizes, &program, args) {
                Ok(moved) => {
                    println!("round {} {}", round + 1, table::line(&moved));
                    moves.push(moved);
                }
                Err(error) => {
                    let error = error_reporter::Report::new(&error);
                    let failure = format!("round {} {case}: {error}", round + 1);
                    println!("{failure}");
                    failures.push(failure);
                }
            }
            // After every move, so that an interrupted bench keeps its results.
            let results = Results {
                host: &host,
                sizes,
                moves: &moves,
                failures: &failures,
            };
            let json = serde_json::to_string_pretty(&results).unwrap_or_default();
            write_file(&args.json, &json)?;
        }
    }
    let mut markdown = format!("{host}\n");
    for table in table::tables(&moves, sizes) {
        println!("\n{}", table.text());
        markdown.push('\n');
        markdown.push_str(&table.markdown());
    }
    write_file(&args.plots.join("throughput.md"), &markdown)?;
    match failures.len() {
        0 => Ok(()),
        failed => Err(BenchError::Failed {
            failed,
            total: failed + moves.len(),
        }),
    }
}

/// The cases that all lists of `--only` match, by the parts of their names.
fn selected(args: &Args) -> Vec<Case> {
    let is_wanted = |case: &Case| {
        let label = case.to_string();
        let mut lists = args.only.iter().filter(|words| *words != NAME);
        lists.all(|words| {
            words
                .split(',')
                .any(|word| word == label || label.split('/').any(|part| part == word))
        })
    };
    case::all().into_iter().filter(is_wanted).collect()
}

/// Measures a case, and repeats it while other processes use the machine; the move with the least
/// interference counts.
fn attempt(
    case: Case,
    round: u32,
    sizes: Sizes,
    program: &std::path::Path,
    args: &Args,
) -> Result<Moved, BenchError> {
    quietest(
        args,
        || moved(case, round, sizes, program, args),
        |moved| match moved {
            Ok(moved) => moved.others_cores,
            Err(_) => f64::INFINITY,
        },
    )
}
