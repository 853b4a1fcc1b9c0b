//! `hikkoshi dirty-rate` beside QEMU's `calc-dirty-rate`: what measuring costs a guest, and how
//! near the result is to what the guest has written. `--only dirty-rate` selects it, and nothing
//! else.
//!
//! A guest runs for some seconds while it is measured, and for as long before and after without.
//! What it loses is the difference in its accesses a second, by its own count.

mod guest;
mod method;
mod table;

use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_lab::{Lab, Report, Vm};
use serde::Serialize;

use self::guest::Writer;
use self::method::{Method, Reported};
use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::meter::wait_until_idle;

/// How `--only` selects this bench.
const NAME: &str = "dirty-rate";

/// How long each measurement is, s. QEMU's takes whole seconds.
const SECONDS: u64 = 3;

/// Rounds, unless `--rounds` says something else.
const ROUNDS: u32 = 3;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    writer: Writer,
    method: Method,
    round: u32,
    /// Accesses a second of the guest without a measurement, before.
    before: f64,
    /// The same afterwards.
    after: f64,
    /// The same while it was measured.
    measured: f64,
    /// Different pages that the guest writes in [`SECONDS`], by its own count of writes.
    expected_pages: f64,
    reported: Reported,
}

impl Measured {
    /// The part of its throughput that the guest has lost while it was measured.
    fn lost(&self) -> f64 {
        1.0 - self.measured / f64::midpoint(self.before, self.after)
    }
}

/// Everything that was measured, as JSON.
#[derive(Debug, Serialize)]
struct Results<'a> {
    host: &'a HostInfo,
    measured: &'a [Measured],
}

/// Whether the arguments select this bench.
pub(crate) fn is_selected(args: &Args) -> bool {
    args.only.iter().any(|words| words == NAME)
}

/// Runs it, and writes the results.
pub(crate) fn run(args: &Args) -> Result<(), BenchError> {
    if args.list {
        for writer in Writer::ALL {
            for method in Method::ALL {
                println!("{NAME}/{writer}/{method}");
            }
        }
        return Ok(());
    }
    let program = args.program()?;
    let host = HostInfo::collect(args.congestion.as_deref());
    println!("{host}\n");
    let mut all = Vec::new();
    for writer in Writer::ALL
        .into_iter()
        .filter(|writer| writer.is_possible())
    {
        let lab = Lab::new()?;
        let vm = writer.config().start(&lab, "guest")?;
        vm.wait_ready()?;
        for round in 0..args.rounds.unwrap_or(ROUNDS) {
            wait_until_idle(args.idle_limit());
            let mut before = undisturbed(&vm);
            for method in Method::ALL {
                let measured = measure(&vm, method, &program)?;
                let after = undisturbed(&vm);
                let run = Measured {
                    writer,
                    method,
                    round,
                    before,
                    after,
                    measured: measured.accesses,
                    expected_pages: writer
                        .different_pages(measured.in_window, measured.reported.window_seconds),
                    reported: measured.reported,
                };
                println!("round {} {}", round + 1, table::line(&run));
                all.push(run);
                before = after;
            }
        }
    }
    let table = table::table(&all);
    println!("\n{}", table.text());
    let results = Results {
        host: &host,
        measured: &all,
    };
    let json = serde_json::to_string_pretty(&results).unwrap_or_default();
    write(&args.json, &json)?;
    write(
        &args.plots.join("dirty-rate.md"),
        &format!("{host}\n\n{}", table.markdown()),
    )
}

/// What happened during a measurement.
struct During {
    /// The guest's accesses a second, from the start of the program to its end.
    accesses: f64,
    /// The same in the window that was reported, which does not include the preparation.
    in_window: f64,
    reported: Reported,
}

fn measure(vm: &Vm, method: Method, program: &Path) -> Result<During, BenchError> {
    let began = Instant::now();
    let reported = method.run(vm, program, SECONDS)?;
    let ended = Instant::now();
    let window = Duration::from_secs_f64(reported.window_seconds);
    let window_began = ended.checked_sub(window).unwrap_or(began);
    Ok(During {
        accesses: rate(vm, began, ended),
        in_window: rate(vm, window_began, ended),
        reported,
    })
}

/// Accesses a second, without a measurement.
fn undisturbed(vm: &Vm) -> f64 {
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(SECONDS));
    rate(vm, began, Instant::now())
}

/// The guest's accesses a second, by its reports whose time lies between these two.
fn rate(vm: &Vm, from: Instant, until: Instant) -> f64 {
    let (mut accesses, mut ms) = (0.0, 0.0);
    for line in vm.console().lines() {
        let Report::Dirty(dirty) = line.report else {
            continue;
        };
        let span = Duration::from_millis(dirty.span_ms);
        if line.at < until && line.at.checked_sub(span).is_some_and(|begin| begin > from) {
            accesses += float(dirty.latency.accesses);
            ms += float(dirty.span_ms);
        }
    }
    accesses * 1e3 / f64::max(ms, 1.0)
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let failed = |doing| {
        move |source| BenchError::File {
            doing,
            path: path.to_owned(),
            source,
        }
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed("creating the folder of"))?;
    }
    std::fs::write(path, text).map_err(failed("writing"))
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}
