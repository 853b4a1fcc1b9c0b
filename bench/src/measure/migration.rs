//! Measures a guest that works while it is moved.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_lab::{ConsoleLine, GuestReport, Vm};

use super::threads::join;
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::{
    CpuMeter, DiskOutcome, Sent, access_rates, accesses_between, begin_disk_latency, disk_p99_ms,
    drains, read_rate, record_traffic, seconds_between, throughput, traffic_rates,
};
use crate::mover::{MoveOutcome, migrate};
use crate::plan::{Case, Variant};
use crate::record::{Run, Series};
use crate::testbed::{DESTINATION, LONG, Testbed};

/// How long the guest works before it is moved.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Moves the guest, and records what the guest and the network show meanwhile.
pub(super) fn measure(
    case: &Case,
    testbed: &Testbed,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let (source, destination) = (&testbed.source, &testbed.destination);
    let working = Instant::now();
    let has_disk = case.workload.disk_bytes_per_second().is_some();
    if has_disk {
        begin_disk_latency(source)?;
    }
    std::thread::sleep(WARM_UP);

    let pids = testbed.pids();
    let lines = source.console().lines();
    run.accesses_per_second_before =
        accesses_between(&lines, "source", working, Instant::now()).and_then(|a| a.per_second);
    let mut p99_before_ms = None;
    if has_disk {
        p99_before_ms = disk_p99_ms(source)?;
        begin_disk_latency(source)?;
    }
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
            // The first answer covers everything up to the switchover and is discarded.
            destination.wait_report("the guest's slow accesses", asked, LONG, |report| {
                matches!(report, GuestReport::Slow(_)).then_some(())
            })?;
            run.slow = Some(destination.slow_accesses(LONG)?.into());
        }
        let (from, until) = match case.system.is_postcopy() {
            true => (resume.at, moved.ended),
            false => (moved.started, stop.at),
        };
        run.throughput = throughput(&sent, from, until);
        if has_disk {
            run.disk = Some(DiskOutcome {
                before: read_rate(&lines, "source", working, moved.started),
                during: read_rate(&lines, "source", moved.started, stop.at),
                p99_before_ms,
                p99_during_ms: disk_p99_ms(source)?,
                ..drains(moved.report.account())
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
    // Without draining, the number of lost pages is a result.
    if !verdict.ok && case.variant != Variant::NoDrain {
        return Err(BenchError::BadPages(verdict.bad));
    }
    Ok(())
}

/// Moves the guest and records the traffic meanwhile. When the guest runs at the destination, makes
/// it reset its counters of slow accesses. The last value is the number of the first console line
/// that can contain the answer.
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
            // The guest answers only when it has received the pages that it needs for that.
            let _ = testbed.destination.send("slow");
        }
        let moved = join(mover);
        over.store(true, Ordering::Relaxed);
        let sent = join(watcher);
        Ok((moved?, sent?, asked))
    })
}

/// The console, after the guest has printed the line for the interval that contains `moment`.
fn lines_after(vm: &Vm, moment: Instant) -> Result<Vec<ConsoleLine>, BenchError> {
    vm.console()
        .wait_for("the line after the last page", 0, LONG, |line| {
            let is_dirty = matches!(line.report, GuestReport::Dirty(_));
            (is_dirty && *line.vm == *vm.name() && line.at > moment).then_some(())
        })?;
    Ok(vm.console().lines())
}
