//! Measures a guest that scans its memory at the destination while no background pages are sent.

use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_lab::{ConsoleLine, GuestReport, QemuMigration, Scanned, TscReading};

use super::threads::join;
use super::timeline::{Trace, TscClock};
use crate::args::Args;
use crate::error::BenchError;
use crate::meter::{CpuMeter, GuestAccount, KvmTrace, seconds_between, vcpu_time_ns};
use crate::mover::{HikkoshiMigration, qemu_migrate};
use crate::plan::{Case, Workload};
use crate::record::{Run, ScanOutcome};
use crate::testbed::{DESTINATION, Testbed};

/// How long a scan may take.
const LIMIT: Duration = Duration::from_secs(240);
/// Starts the background later than any scan ends, ms.
const BACKGROUND_DELAY_MS: &str = "600000";
/// QEMU cannot disable its background, and treats less than 10 bytes a second as no limit.
const BACKGROUND_OF_QEMU: u64 = 4096;

/// Switches the guest over and lets it scan. The migration is not completed: the scan has checked
/// all pages that matter here.
pub(super) fn measure(
    case: &Case,
    testbed: &Testbed,
    program: &Path,
    args: &Args,
    run: &mut Run,
) -> Result<(), BenchError> {
    let pids = testbed.pids();
    let meter = CpuMeter::start(&pids);
    let outcome = match (case.system.hikkoshi_mode(), case.system.qemu_mode()) {
        (Some(mode), _) => {
            let more = ["--background-delay", BACKGROUND_DELAY_MS];
            let mut moving =
                HikkoshiMigration::start(testbed, program, mode, case.variant, args, &more)?;
            let mut failure = None;
            let traced = case.workload == Workload::NanoTimeline;
            let trace = traced.then(Trace::start).transpose()?;
            let outcome = scanned(case, testbed, &mut || match moving.check() {
                Ok(()) => false,
                Err(error) => {
                    failure = Some(error);
                    true
                }
            });
            let outcome = failure.map_or(outcome, Err);
            if let (Some(trace), Ok(_)) = (trace, &outcome) {
                run.timeline = Some(trace.finish(&testbed.destination, &moving)?);
            }
            outcome
        }
        (None, Some(mode)) => {
            let mut migration = QemuMigration::new(mode);
            migration.switch_at_once = true;
            migration.postcopy_bandwidth = BACKGROUND_OF_QEMU;
            std::thread::scope(|scope| {
                let mover = scope.spawn(|| qemu_migrate(&migration, testbed, None));
                let outcome = scanned(case, testbed, &mut || mover.is_finished());
                testbed.source.kill();
                testbed.destination.kill();
                // Its source was killed during the migration, so its error matters only if it came
                // before.
                let moved = join(mover);
                outcome.map_err(|error| moved.err().unwrap_or(error))
            })
        }
        (None, None) => unreachable!("every system is hikkoshi or QEMU"),
    };
    let (outcome, bytes) = outcome?;
    run.bytes = Some(bytes);
    run.others_cores = meter.others_cores(&pids);
    run.cpu_seconds = meter.own_seconds(&pids);
    run.scan = Some(outcome);
    Ok(())
}

/// Waits for the switchover, starts the scan, and waits for its end. The number is the bytes on the
/// network meanwhile.
fn scanned(
    case: &Case,
    testbed: &Testbed,
    over: &mut dyn FnMut() -> bool,
) -> Result<(ScanOutcome, u64), BenchError> {
    let guest = &testbed.destination;
    if testbed.resumed(&mut *over).is_none() {
        return Err(BenchError::NoSwitch);
    }
    let counts_faults = matches!(case.workload, Workload::NanoWalk(_));
    let kernel = counts_faults.then(KernelFaults::start).transpose()?;
    let first = guest.console().len();
    let bytes = testbed.network.bytes()?;
    let (begun, before) = (Instant::now(), vcpu_time_ns(guest)?);
    guest.send("scan")?;
    let end = loop {
        // Waits in short steps, to detect early that the migration has ended.
        let turn = Duration::from_millis(500);
        let wanted = |report: &GuestReport| match report {
            GuestReport::Scanned(scanned) => Some(*scanned),
            _ => None,
        };
        let what = "the end of the scan";
        if let Some(end) = guest.wait_report_or_none(what, first, turn, wanted)? {
            break end;
        }
        if over() || begun.elapsed() > LIMIT {
            break guest.wait_report(what, first, Duration::ZERO, wanted)?;
        }
    };
    let (elapsed, after) = (begun.elapsed(), vcpu_time_ns(guest)?);
    let bytes = testbed.network.bytes()?.saturating_sub(bytes);
    let lines = guest.console().since(first);
    let ran = (elapsed, after.saturating_sub(before));
    let mut outcome = outcome(&end, &lines, begun, ran)?;
    if case.workload.is_nano() {
        let mut account = GuestAccount::find(&lines, DESTINATION, begun, end.ms);
        if let Some(kernel) = kernel {
            kernel.add_to(&mut account)?;
        }
        outcome.guest = Some(account);
    }
    Ok((outcome, bytes))
}

/// The kernel's trace of page faults, from a scan's begin on.
struct KernelFaults {
    trace: KvmTrace,
    begun: TscReading,
}

impl KernelFaults {
    fn start() -> Result<Self, BenchError> {
        Ok(Self {
            trace: KvmTrace::start()?,
            begun: TscReading::now(),
        })
    }

    /// Ends the trace, and adds its events to the guest's intervals.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn add_to(self, account: &mut GuestAccount) -> Result<(), BenchError> {
        let begun = self.begun.monotonic_ns as f64;
        let clock = TscClock {
            before: self.begun,
            after: TscReading::now(),
        };
        let events = self.trace.finish()?;
        let events = events.iter();
        account.add_kvm_events(
            events.map(|event| ((clock.ns(event.ticks) - begun) / 1e9, event.kind)),
        );
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn outcome(
    end: &Scanned,
    lines: &[ConsoleLine],
    begun: Instant,
    (elapsed, ran_ns): (Duration, u64),
) -> Result<ScanOutcome, BenchError> {
    if !end.ok {
        return Err(BenchError::BadPages(end.bad));
    }
    let (mut pages, mut progress) = (0, vec![(0.0, 0.0)]);
    for line in lines.iter().filter(|line| *line.vm == *DESTINATION) {
        if let GuestReport::Scan(scan) = &line.report {
            pages += scan.latency.accesses;
            progress.push((seconds_between(begun, line.at), pages as f64));
            if pages >= end.pages {
                break;
            }
        }
    }
    Ok(ScanOutcome {
        ms: end.ms,
        pages: end.pages,
        ran: ran_ns as f64 / 1e9 / elapsed.as_secs_f64().max(1e-9),
        progress,
        guest: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: Instant, text: &str) -> ConsoleLine {
        ConsoleLine {
            at,
            vm: DESTINATION.into(),
            report: GuestReport::parse(text),
            text: text.to_owned(),
        }
    }

    #[test]
    fn progress_is_the_sum_of_a_scans_lines() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let part = |ms, pages| {
            line(
                at(ms),
                &format!(
                    "scan: ok t=1.0 span_ms=100 accesses={pages} slow=0 mean_us=1.0 max_us=1.0 slow_mean_us=0.0 slow_max_us=0.0 hist=-"
                ),
            )
        };
        let lines = [part(100, 40), part(200, 60), part(300, 0)];
        let end = Scanned {
            ok: true,
            pages: 100,
            bad: 0,
            ms: 200.0,
        };
        let ran = (Duration::from_millis(250), 50_000_000);
        let scan = outcome(&end, &lines, begun, ran).unwrap();
        assert_eq!(scan.progress, [(0.0, 0.0), (0.1, 40.0), (0.2, 100.0)]);
        assert!((scan.ran - 0.2).abs() < 1e-9);
        assert!((scan.pages_per_second() - 500.0).abs() < 1e-9);
        let bad = Scanned {
            ok: false,
            bad: 3,
            ..end
        };
        let error = outcome(&bad, &lines, begun, ran).unwrap_err();
        assert!(matches!(error, BenchError::BadPages(3)), "{error}");
    }
}
