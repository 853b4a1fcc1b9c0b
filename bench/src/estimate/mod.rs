//! `hikkoshi estimate` beside what happens then: each case boots a guest, predicts its migration in
//! every mode, writes that down, and moves the guest in one of them. `--only estimate` selects it,
//! and nothing else; further words select among its cases (`LINE/GUEST/MODE`).

mod guest;
mod moved;
mod plot;
mod redis;
mod table;

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use self::guest::{Writer, line_name};
use self::moved::{Moved, Results};
use self::redis::RedisClient;
use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::meter::{CpuMeter, wait_until_idle};
use crate::mover::{HikkoshiMigration, OwnReport, estimate};
use crate::plan::{NetworkKind, Variant};
use crate::report::write_file;
use crate::testbed::LONG;

/// How `--only` selects this bench.
pub(crate) const NAME: &str = "estimate";

/// How long the guest works before it is measured.
const WARM_UP: Duration = Duration::from_millis(1500);

/// The slowest pre-copy that converges takes about half of this: 12 s for its first round at 200
/// Mbit/s.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);

/// How long the guest's writes are measured, s.
const SECONDS: &str = "3";

/// Rounds, unless `--rounds` says something else.
const ROUNDS: u32 = 1;

/// A line on which a move takes minutes.
const SLOW: NetworkKind = NetworkKind::Mbit(20);

/// The slowest pre-copy there.
const SLOW_PATIENCE: Duration = Duration::from_secs(250);

/// The modes.
const MODES: [&str; 3] = ["precopy", "postcopy", "hybrid"];

/// What is moved, over which line, and how.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
struct Case {
    line: NetworkKind,
    guest: Writer,
    mode: &'static str,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", line_name(self.line), self.guest, self.mode)
    }
}

/// Every guest in every mode over the most common line; over the others, those that differ there.
fn cases() -> Vec<Case> {
    let lines = [
        NetworkKind::Gbit(1),
        NetworkKind::Gbit(10),
        NetworkKind::Loopback,
        NetworkKind::Mbit(200),
        SLOW,
    ];
    let mut cases = Vec::new();
    for line in lines {
        let guests = Writer::ALL.into_iter();
        for guest in guests.filter(|guest| guest.is_moved_over(line)) {
            let modes: &[&'static str] = match (line, guest) {
                (NetworkKind::Gbit(1), _) => &MODES,
                (SLOW, Writer::Random) => &["postcopy", "hybrid"],
                (_, Writer::Idle | Writer::Random | Writer::Hotspot | Writer::Disk) => &MODES,
                (NetworkKind::Mbit(_), _) => &["hybrid"],
                _ => &["precopy", "hybrid"],
            };
            cases.extend(modes.iter().map(|&mode| Case { line, guest, mode }));
        }
    }
    cases
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    let cases: Vec<_> = cases()
        .into_iter()
        .filter(|case| {
            let label = case.to_string();
            let has = |word: &str| word == label || label.split('/').any(|part| part == word);
            args.only
                .iter()
                .filter(|words| *words != NAME)
                .all(|words| words.split(',').any(has))
        })
        .collect();
    if args.list {
        for case in &cases {
            println!("{NAME}: {case}");
        }
        return Ok(());
    }
    if let Some(file) = &args.from {
        return report(&Results::read(file)?, args);
    }
    let program = args.program()?;
    let mut results = Results {
        host: HostInfo::collect(args.congestion.as_deref()),
        moves: Vec::new(),
    };
    println!("{}\n", results.host);
    let rounds = args.rounds.unwrap_or(ROUNDS);
    let total = cases.len() * usize::try_from(rounds).unwrap_or(1);
    for round in 0..rounds {
        for case in &cases {
            wait_until_idle(args.idle_limit());
            let moved = moved(*case, round, &program, args);
            println!(
                "[{}/{total}] round {} {}",
                results.moves.len() + 1,
                round + 1,
                table::line(&moved)
            );
            results.moves.push(moved);
            // After every move, so that an interrupted bench keeps its results.
            let json = serde_json::to_string_pretty(&results).unwrap_or_default();
            write_file(&args.json, &json)?;
        }
    }
    report(&results, args)
}

/// Prints the tables, and writes them and the plots to `--plots`.
fn report(results: &Results, args: &Args) -> Result<(), BenchError> {
    let all = &results.moves;
    let tables = [
        table::moves(all),
        table::errors(all),
        table::convergence(all),
        table::choices(all),
        table::time_left(all),
    ];
    for table in &tables {
        println!("\n{}", table.text());
    }
    let markdown: Vec<_> = tables.iter().map(|table| table.markdown()).collect();
    write_file(
        &args.plots.join("estimate.md"),
        &format!("{}\n\n{}", results.host, markdown.join("\n")),
    )?;
    if let Some(chart) = plot::scatter(all, &results.host) {
        write_file(&args.plots.join("predicted.svg"), &chart.svg()?)?;
    }
    match all.iter().filter(|moved| moved.failure.is_some()).count() {
        0 => Ok(()),
        failed => Err(BenchError::Failed {
            failed,
            total: all.len(),
        }),
    }
}

/// Predicts, and moves.
fn moved(case: Case, round: u32, program: &Path, args: &Args) -> Moved {
    let mut moved = Moved {
        case,
        round,
        prediction: Value::Null,
        account: None,
        others_cores: 0.0,
        failure: None,
    };
    if let Err(error) = predict_and_move(&mut moved, program, args) {
        moved.failure = Some(error_reporter::Report::new(&error).to_string());
    }
    moved
}

fn predict_and_move(moved: &mut Moved, program: &Path, args: &Args) -> Result<(), BenchError> {
    let case = moved.case;
    let testbed = case.guest.boot(case.line)?;
    let client = match (&testbed.guest_network, case.guest) {
        (Some(network), Writer::Redis) => Some(RedisClient::start(network)?),
        _ => None,
    };
    std::thread::sleep(WARM_UP);
    let max_downtime = args.max_downtime.to_string();
    let options = ["--max-downtime", &max_downtime, "--seconds", SECONDS];
    let waiting = HikkoshiMigration::receive(&testbed, program, Variant::Plain)?;
    let copies_disks = case.guest.copies_disks();
    if !copies_disks {
        moved.prediction = estimate(&testbed, program, &options)?;
    }
    // Before the guest is moved.
    let file = args.json.with_extension("predictions.jsonl");
    append(
        &file,
        &json!({ "case": case.to_string(), "round": moved.round, "prediction": &moved.prediction }),
    )?;
    let pids = testbed.pids();
    let meter = CpuMeter::start(&pids);
    let outcome = HikkoshiMigration::migrate(
        waiting,
        &testbed,
        program,
        case.mode,
        Variant::Plain,
        args,
        if copies_disks { &["--copy-disks"] } else { &[] },
    )?
    // Pre-copy is cancelled if it does not converge; the other modes end by themselves.
    .finish((case.mode == "precopy").then(|| {
        args.give_up().max(match case.line {
            SLOW => SLOW_PATIENCE,
            _ => LEAST_PATIENCE,
        })
    }))?;
    moved.others_cores = meter.others_cores(&pids);
    if !outcome.called_off {
        moved.account = match outcome.report {
            OwnReport::Hikkoshi(report) => Some(report),
            OwnReport::Other(_) => None,
        };
    }
    let home = if outcome.called_off {
        &testbed.source
    } else {
        &testbed.destination
    };
    if let Some(client) = client {
        client.finish()?;
    }
    let verdict = home.sweep(LONG)?;
    match verdict.ok {
        true => Ok(()),
        false => Err(BenchError::BadPages(verdict.bad)),
    }
}

fn append(path: &Path, line: &Value) -> Result<(), BenchError> {
    let failed = |source| BenchError::File {
        doing: "writing the prediction to",
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(failed)?;
    writeln!(file, "{line}").map_err(failed)
}
