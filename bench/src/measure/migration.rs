//! The guest works while it is moved: what it and the network show meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_lab::{ConsoleLine, Report, Vm};

use super::threads::join;
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::{
    CpuMeter, DiskOutcome, Sent, access_rates, accesses_between, drains, read_rate, record_traffic,
    seconds_between, throughput, traffic_rates,
};
use crate::mover::{MoveOutcome, migrate};
use crate::plan::{Case, Variant};
use crate::record::{Run, Series};
use crate::testbed::{DESTINATION, LONG, Testbed};

/// How long the guest works before it is moved.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Moves the guest and measures that.
pub fn measure(
    case: &Case,
    testbed: &Testbed,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let (source, destination) = (&testbed.source, &testbed.destination);
    let working = Instant::now();
    std::thread::sleep(WARM_UP);

    let pids = testbed.pids();
    let lines = source.console().lines();
    run.accesses_per_second_before =
        accesses_between(&lines, "source", working, Instant::now()).and_then(|a| a.per_second);
    let before = testbed.network.bytes()?;
    let meter = CpuMeter::start(&pids);
    let (moved, sent, asked) = migrate_and_record(case, testbed, program, args)?;
    run.others_cores = meter.others_cores(&pids);
    run.cpu_seconds = meter.own_seconds(&pids);
    run.bytes = Some(testbed.network.bytes()?.saturating_sub(before));
    run.take(&moved);

    let home = if moved.called_off {
        source
    } else {
        destination
    };
    if !moved.called_off {
        let (stop, resume) = testbed.switch()?;
        run.downtime_ms = Some(resume.happened.saturating_sub(stop.happened).as_secs_f64() * 1e3);
        let lines = lines_after(home, moved.ended)?;
        run.accesses = accesses_between(&lines, DESTINATION, resume.at, moved.ended);
        if let Some(asked) = asked {
            // First the answer to the first question: everything up to the switch, of no use.
            destination.wait_report("its slow accesses", asked, LONG, |report| {
                matches!(report, Report::Slow(_)).then_some(())
            })?;
            run.slow = Some(destination.slow_accesses(LONG)?.into());
        }
        let (from, until) = match case.system.is_postcopy() {
            true => (resume.at, moved.ended),
            false => (moved.started, stop.at),
        };
        run.throughput = throughput(&sent, from, until);
        if case.workload.disk_bytes_per_second().is_some() {
            run.disk = Some(DiskOutcome {
                before: read_rate(&lines, "source", working, moved.started),
                during: read_rate(&lines, "source", moved.started, stop.at),
                ..drains(&moved.account)
            });
        }
        run.series = Series {
            ended: seconds_between(resume.at, moved.ended),
            accesses: access_rates(&lines, resume.at),
            bytes: traffic_rates(&sent, resume.at, Duration::from_millis(100)),
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
fn migrate_and_record(
    case: &Case,
    testbed: &Testbed,
    program: &Path,
    args: &Args,
) -> Result<(MoveOutcome, Sent, Option<usize>), BenchError> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (host, device) = (testbed.network.source(), testbed.network.device());
        let watcher = scope.spawn(|| record_traffic(host, device, &over));
        let mover = scope.spawn(|| migrate(testbed, case, program, args));
        let switched =
            case.system.is_postcopy() && testbed.resumed(|| mover.is_finished()).is_some();
        let asked = switched.then(|| testbed.destination.console().len());
        if asked.is_some() {
            // It may answer only when pages of its own have come.
            let _ = testbed.destination.send("slow");
        }
        let moved = join(mover);
        over.store(true, Ordering::Relaxed);
        let sent = join(watcher);
        Ok((moved?, sent?, asked))
    })
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
