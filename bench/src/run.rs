//! One run: boot, work, move, check.

use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_lab::{Event, Lab, Line as ConsoleLine, Ram, Report, Vm, VmConfig};
use serde_json::Value;

use crate::args::Args;
use crate::error::BenchError;
use crate::hikkoshi::{self, Setting};
use crate::latency;
use crate::line::Line;
use crate::plan::{Case, Load, RAM_MIB};
use crate::qemu;
use crate::quiet::Meter;
use crate::record::Run;

/// How long the guest works before it is moved.
const WARM_UP: Duration = Duration::from_millis(1500);
/// How long the guest may take for a line, or for looking at all of its pages.
const LONG: Duration = Duration::from_secs(60);
const DESTINATION: &str = "destination";

/// How a move went, as the one who moved it knows.
#[derive(Debug)]
pub struct Moved {
    /// The command.
    pub started: Instant,
    /// Everything is received.
    pub ended: Instant,
    /// Pre-copy did not converge in time.
    pub called_off: bool,
    /// The system's own figure.
    pub own_downtime_ms: Option<f64>,
    /// Rounds of pre-copy.
    pub rounds: Option<u64>,
    /// The system's own account.
    pub account: Value,
}

/// Measures a case once. A failure is a result, too.
pub fn run(case: &Case, program: &Path, round: u32, args: &Args) -> Run {
    let mut run = Run::new(case, round);
    if let Err(error) = measure(case, program, args, &mut run) {
        run.failure = Some(error.to_string());
    }
    run
}

fn measure(case: &Case, program: &Path, args: &Args, run: &mut Run) -> Result<(), BenchError> {
    let lab = Lab::new()?;
    let line = Line::new(case.line, args.congestion.as_deref())?;
    let config = VmConfig::new()
        .ram(Ram::shared(RAM_MIB))
        .workload(case.load.workload());
    let source = config
        .clone()
        .namespace(line.source())
        .start(&lab, "source")?;
    let destination = config
        .namespace(line.destination())
        .console(source.console().clone())
        .incoming()
        .start(&lab, DESTINATION)?;
    source.wait_ready()?;
    source.wait_sign_of_life(LONG)?;
    let working = Instant::now();
    std::thread::sleep(WARM_UP);

    let pids = [source.pid(), destination.pid()];
    let lines = source.console().lines();
    run.accesses_per_second_before =
        latency::between(&lines, "source", working, Instant::now()).and_then(|a| a.per_second);
    let before = line.bytes()?;
    let meter = Meter::start(&pids);
    let endless = case.load == Load::Endless;
    let moved = match (case.system.hikkoshi_mode(), case.system.qemu_mode()) {
        (Some(mode), _) => {
            let setting = Setting {
                program,
                line: &line,
                lab: &lab,
                source: &source,
                destination: &destination,
            };
            hikkoshi::migrate(setting, mode, args, endless)
        }
        (None, Some(mode)) => qemu::migrate(mode, &line, &source, &destination, args, endless),
        (None, None) => unreachable!("every system is one or the other"),
    }?;
    run.others_cores = meter.others_cores(&pids);
    run.cpu_seconds = meter.own_seconds(&pids);
    run.bytes = Some(line.bytes()?.saturating_sub(before));
    run.called_off = moved.called_off;
    run.own_downtime_ms = moved.own_downtime_ms;
    run.total_ms = Some((moved.ended - moved.started).as_secs_f64() * 1e3);
    run.rounds = moved.rounds;
    run.account = moved.account;

    let home = if moved.called_off {
        &source
    } else {
        &destination
    };
    if !moved.called_off {
        let (stop, resume) = switch(&source, &destination)?;
        run.downtime_ms = Some(resume.happened.saturating_sub(stop.happened).as_secs_f64() * 1e3);
        let lines = lines_after(home, moved.ended)?;
        run.accesses = latency::between(&lines, DESTINATION, resume.at, moved.ended);
    }
    let verdict = home.sweep(LONG)?;
    if !verdict.ok {
        return Err(BenchError::BadPages(verdict.bad));
    }
    Ok(())
}

/// The console, once the guest has printed the line that was under way at `moment`.
fn lines_after(vm: &Vm, moment: Instant) -> Result<Vec<ConsoleLine>, BenchError> {
    vm.console()
        .wait_for("the line after the last page", 0, LONG, |line| {
            let told = matches!(line.report, Report::Dirty(_));
            (told && *line.vm == *vm.name() && line.at > moment).then_some(())
        })?;
    Ok(vm.console().lines())
}

/// The events that downtime lies between: the destination's first `RESUME`, and the source's last
/// `STOP` before it.
fn switch(source: &Vm, destination: &Vm) -> Result<(Event, Event), BenchError> {
    let resume = destination.qmp().wait_event("RESUME", 0, LONG)?;
    source.qmp().wait_event("STOP", 0, LONG)?;
    let stop = source
        .qmp()
        .events()
        .into_iter()
        .rfind(|event| event.name == "STOP" && event.happened <= resume.happened);
    match stop {
        Some(stop) => Ok((stop, resume)),
        // A source that stops after the destination runs would be two guests at once.
        None => Err(hikkoshi_lab::LabError::TimedOut {
            what: "the source's STOP before the destination's RESUME".to_owned(),
            after: Duration::ZERO,
            seen: format!("{:?}", source.qmp().events()),
        }
        .into()),
    }
}
