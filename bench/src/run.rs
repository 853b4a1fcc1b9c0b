//! One run: boot, work, move, check.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_lab::{
    Event, GuestNetwork, Lab, Line as ConsoleLine, QemuMigration, Report, Vm, VmConfig,
    web_initramfs,
};
use serde_json::Value;

use crate::args::Args;
use crate::error::BenchError;
use crate::hikkoshi::{Moving, Setting};
use crate::latency;
use crate::line::Line;
use crate::plan::{Case, DISK_ARENA_MIB, Kind, Load, Variant};
use crate::qemu;
use crate::quiet::Meter;
use crate::record::{Run, Series};
use crate::watch::{self, Sent};
use crate::{disk, scan, web};

/// How long the guest works before it is moved.
const WARM_UP: Duration = Duration::from_millis(1500);
/// How long the guest may take for a line, or for looking at all of its pages.
pub const LONG: Duration = Duration::from_secs(60);
/// How long a move may take until the switch.
const SWITCH: Duration = Duration::from_secs(300);
pub const DESTINATION: &str = "destination";

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

/// A guest at work, its new home, and the line between.
#[derive(Debug)]
pub struct Stage {
    pub lab: Lab,
    pub line: Line,
    pub source: Vm,
    pub destination: Vm,
    /// The guest's network, if it serves.
    pub network: Option<GuestNetwork>,
}

impl Stage {
    /// Boots the guest, and waits until it is at work.
    fn set(case: &Case, args: &Args) -> Result<Self, BenchError> {
        let lab = Lab::new()?;
        let config = VmConfig::new()
            .ram(case.load.ram())
            .workload(case.load.workload());
        let (config, throttle) = match case.load.disk_bytes_per_second() {
            Some(rate) => {
                let (config, throttle) = disk::attach(&lab, config, rate)?;
                (config, Some(throttle))
            }
            None => (config, None),
        };
        let congestion = args.congestion.as_deref();
        let (network, line, config) = if case.load.kind() == Kind::Web {
            let network = GuestNetwork::new()?;
            let hosts = (network.source().clone(), network.destination().clone());
            let line = Line::between(hosts, case.line, congestion)?;
            let config = config.nic(network.nic()).initramfs(web_initramfs()?);
            (Some(network), line, config)
        } else {
            (None, Line::new(case.line, congestion)?, config)
        };
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
        if let (Some(throttle), Some(rate)) = (&throttle, case.load.disk_bytes_per_second()) {
            // All of the memory that the disk is read into has been used before it counts.
            throttle.set(0)?;
            wait_read(&source, 2 * DISK_ARENA_MIB * 1024)?;
            throttle.set(rate)?;
        }
        Ok(Self {
            lab,
            line,
            source,
            destination,
            network,
        })
    }

    /// What `hikkoshi` is run with.
    pub fn setting<'a>(&'a self, program: &'a Path) -> Setting<'a> {
        Setting {
            program,
            line: &self.line,
            lab: &self.lab,
            source: &self.source,
            destination: &self.destination,
        }
    }

    /// QEMU's processes.
    pub fn pids(&self) -> [u32; 2] {
        [self.source.pid(), self.destination.pid()]
    }

    /// Moves the guest from here to there.
    pub fn carry(&self, case: &Case, program: &Path, args: &Args) -> Result<Moved, BenchError> {
        let give_up = (case.load == Load::Endless).then(|| args.give_up());
        match (case.system.hikkoshi_mode(), case.system.qemu_mode()) {
            (Some(mode), _) => {
                let setting = self.setting(program);
                Moving::begin(setting, mode, case.variant, args, &[])?.finish(give_up)
            }
            (None, Some(mode)) => {
                let mut migration = QemuMigration::new(mode);
                migration.downtime_ms = args.max_downtime;
                qemu::migrate(&migration, self, give_up)
            }
            (None, None) => unreachable!("every system is one or the other"),
        }
    }

    /// Waits until the guest runs at its destination; `None` when `over` says that it will not.
    pub fn resumed(&self, mut over: impl FnMut() -> bool) -> Option<Event> {
        let deadline = Instant::now() + SWITCH;
        loop {
            let events = self.destination.qmp().events();
            if let Some(event) = events.into_iter().find(|event| event.name == "RESUME") {
                return Some(event);
            }
            if over() || Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The events that downtime lies between: the destination's first `RESUME`, and the source's
    /// last `STOP` before it.
    pub fn switch(&self) -> Result<(Event, Event), BenchError> {
        let resume = self.destination.qmp().wait_event("RESUME", 0, LONG)?;
        self.source.qmp().wait_event("STOP", 0, LONG)?;
        let stop = self
            .source
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
                seen: format!("{:?}", self.source.qmp().events()),
            }
            .into()),
        }
    }
}

/// Waits until the guest has read so much of its disk, KiB.
fn wait_read(vm: &Vm, kib: u64) -> Result<(), BenchError> {
    let mut read = 0;
    let first = vm.console().len();
    vm.wait_report("its disk to be read", first, LONG, |report| {
        if let Report::Disk(work) = report {
            read += work.read_kib;
        }
        (read >= kib).then_some(())
    })?;
    Ok(())
}

/// Measures a case once. A failure is a result, too.
pub fn run(case: &Case, program: &Path, round: u32, args: &Args) -> Run {
    let mut run = Run::new(case, round);
    let measured = Stage::set(case, args).and_then(|stage| match case.load.kind() {
        Kind::Move => moved(case, &stage, program, args, &mut run),
        Kind::Scan => scan::measure(case, &stage, program, args, &mut run),
        Kind::Web => web::measure(case, &stage, program, args, &mut run),
    });
    if let Err(error) = measured {
        run.failure = Some(error.to_string());
    }
    run
}

fn moved(
    case: &Case,
    stage: &Stage,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let (source, destination) = (&stage.source, &stage.destination);
    let working = Instant::now();
    std::thread::sleep(WARM_UP);

    let pids = stage.pids();
    let lines = source.console().lines();
    run.accesses_per_second_before =
        latency::between(&lines, "source", working, Instant::now()).and_then(|a| a.per_second);
    let before = stage.line.bytes()?;
    let meter = Meter::start(&pids);
    let (moved, sent, asked) = carried(case, stage, program, args)?;
    run.others_cores = meter.others_cores(&pids);
    run.cpu_seconds = meter.own_seconds(&pids);
    run.bytes = Some(stage.line.bytes()?.saturating_sub(before));
    run.take(&moved);

    let home = if moved.called_off {
        source
    } else {
        destination
    };
    if !moved.called_off {
        let (stop, resume) = stage.switch()?;
        run.downtime_ms = Some(resume.happened.saturating_sub(stop.happened).as_secs_f64() * 1e3);
        let lines = lines_after(home, moved.ended)?;
        run.accesses = latency::between(&lines, DESTINATION, resume.at, moved.ended);
        if let Some(asked) = asked {
            // First the answer to the first question: everything up to the switch, of no use.
            destination.wait_report("its slow accesses", asked, LONG, |report| {
                matches!(report, Report::Slow(_)).then_some(())
            })?;
            run.slow = Some(destination.slow(LONG)?.into());
        }
        let (from, until) = match case.system.is_postcopy() {
            true => (resume.at, moved.ended),
            false => (moved.started, stop.at),
        };
        run.throughput = watch::throughput(&sent, from, until);
        if case.load.disk_bytes_per_second().is_some() {
            run.disk = Some(disk::DiskOutcome {
                before: disk::read_rate(&lines, "source", working, moved.started),
                during: disk::read_rate(&lines, "source", moved.started, stop.at),
                ..disk::drains(&moved.account)
            });
        }
        run.series = Series {
            ended: watch::seconds_between(resume.at, moved.ended),
            accesses: latency::series(&lines, resume.at),
            bytes: watch::series(&sent, resume.at, Duration::from_millis(100)),
        };
    }
    let verdict = home.sweep(LONG)?;
    if let Some(disk) = &mut run.disk {
        disk.bad_pages = verdict.bad;
    }
    // What is lost without draining is a number, too.
    if !verdict.ok && case.variant != Variant::NoDrain {
        return Err(BenchError::BadPages(verdict.bad));
    }
    Ok(())
}

/// Moves the guest, watches the line meanwhile, and has the guest begin to count its slow accesses
/// anew when it runs at the destination; the last number is that of the first console line that
/// may hold its answer.
fn carried(
    case: &Case,
    stage: &Stage,
    program: &Path,
    args: &Args,
) -> Result<(Moved, Sent, Option<usize>), BenchError> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (host, device) = (stage.line.source(), stage.line.device());
        let watcher = scope.spawn(|| watch::watch(host, device, &over));
        let mover = scope.spawn(|| stage.carry(case, program, args));
        let switched = case.system.is_postcopy() && stage.resumed(|| mover.is_finished()).is_some();
        let asked = switched.then(|| stage.destination.console().len());
        if asked.is_some() {
            // It may answer only when pages of its own have come.
            let _ = stage.destination.send("slow");
        }
        let moved = join(mover);
        over.store(true, Ordering::Relaxed);
        let sent = join(watcher);
        Ok((moved?, sent?, asked))
    })
}

/// The result of a thread of ours; a panic goes on here.
pub fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
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
