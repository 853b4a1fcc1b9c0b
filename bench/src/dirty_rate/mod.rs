//! `hikkoshi dirty-rate` beside QEMU's `calc-dirty-rate`: what measuring costs a guest, and how
//! near the result is to what the guest has written. `--only dirty-rate` selects it, and nothing
//! else.
//!
//! A guest runs for some seconds while it is measured, and for as long before and after without.
//! What it loses is the difference in its accesses a second, by its own count. On a machine with
//! neighbors that count differs by more than the loss, so the time that its virtual processors
//! spend in the kernel is measured, too: there the page faults of a dirty log are handled.

mod guest;
mod method;
mod table;

use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_lab::{GuestReport, Lab, Vm};
use serde::Serialize;

use self::guest::Writer;
use self::method::{Method, Reported};
use crate::args::Args;
use crate::error::BenchError;
use crate::host_info::HostInfo;
use crate::meter::{vcpu_kernel_ticks, wait_until_idle};

/// How `--only` selects this bench.
pub(crate) const NAME: &str = "dirty-rate";

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
    /// Accesses a second of the guest without a measurement, afterwards.
    after: f64,
    /// Accesses a second of the guest while it was measured.
    measured: f64,
    /// The part of the time that the virtual processors spent in the kernel: before, while it was
    /// measured, and after.
    kernel_before: f64,
    kernel_measured: f64,
    kernel_after: f64,
    /// Different pages that the guest writes in [`SECONDS`], by its own count of writes.
    expected_pages: f64,
    reported: Reported,
}

impl Measured {
    /// The part of its throughput that the guest has lost while it was measured.
    fn lost(&self) -> f64 {
        1.0 - self.measured / f64::midpoint(self.before, self.after)
    }

    /// The part of its time that the measurement has cost in the kernel.
    fn kernel_cost(&self) -> f64 {
        self.kernel_measured - f64::midpoint(self.kernel_before, self.kernel_after)
    }
}

/// Everything that was measured, as JSON.
#[derive(Debug, Serialize)]
struct Results<'a> {
    host: &'a HostInfo,
    measured: &'a [Measured],
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
            let mut before = undisturbed(&vm)?;
            for method in Method::ALL {
                let measured = measure(&vm, method, &program)?;
                let after = undisturbed(&vm)?;
                let run = Measured {
                    writer,
                    method,
                    round,
                    before: before.accesses,
                    after: after.accesses,
                    measured: measured.load.accesses,
                    kernel_before: before.in_kernel,
                    kernel_measured: measured.load.in_kernel,
                    kernel_after: after.in_kernel,
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

/// What the guest did in a time.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Accesses a second.
    accesses: f64,
    /// The part of the time that its virtual processors spent in the kernel.
    in_kernel: f64,
}

/// What happened during a measurement.
struct During {
    /// From the start of the program to its end.
    load: Load,
    /// The guest's accesses a second in the window that was reported, which does not include the
    /// preparation.
    in_window: f64,
    reported: Reported,
}

fn measure(vm: &Vm, method: Method, program: &Path) -> Result<During, BenchError> {
    let began = Instant::now();
    let (load, reported) = load_during(vm, || method.run(vm, program, SECONDS))?;
    let ended = Instant::now();
    let window = Duration::from_secs_f64(reported.window_seconds);
    let window_began = ended.checked_sub(window).unwrap_or(began);
    Ok(During {
        load,
        in_window: rate(vm, window_began, ended),
        reported,
    })
}

/// Without a measurement.
fn undisturbed(vm: &Vm) -> Result<Load, BenchError> {
    let wait = || {
        std::thread::sleep(Duration::from_secs(SECONDS));
        Ok(())
    };
    load_during(vm, wait).map(|(load, ())| load)
}

fn load_during<T>(
    vm: &Vm,
    during: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(Load, T), BenchError> {
    let (began, before) = (Instant::now(), vcpu_kernel_ticks(vm)?);
    let value = during()?;
    let ended = Instant::now();
    let ticks = vcpu_kernel_ticks(vm)? - before;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let load = Load {
        accesses: rate(vm, began, ended),
        in_kernel: float(ticks) / float(ticks_per_second) / (ended - began).as_secs_f64(),
    };
    Ok((load, value))
}

/// The guest's accesses a second, by its reports whose time lies between these two.
fn rate(vm: &Vm, from: Instant, until: Instant) -> f64 {
    let (mut accesses, mut ms) = (0.0, 0.0);
    for line in vm.console().lines() {
        let GuestReport::Dirty(dirty) = line.report else {
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
