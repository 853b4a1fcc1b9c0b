//! Plots of the nano guest's scans.

use super::axis::Scale;
use super::chart::{Chart, Points, Style};
use super::figures::{cases, chart, panel};
use crate::meter::GuestInterval;
use crate::plan::{Case, NetworkKind, System, Variant, Workload};
use crate::record::Run;

/// The progress of the scans, the share of the time that tasks ran, and faults of accesses that had
/// faulted before.
pub(super) fn nano_scans(runs: &[&Run], network: NetworkKind) -> Option<Chart> {
    let first_runs: Vec<&Run> = cases(runs, |case| {
        (case.network, case.workload) == (network, Workload::NanoScan)
    })
    .iter()
    .filter_map(|case| runs.iter().find(|run| run.case == *case).copied())
    .collect();
    if first_runs.is_empty() {
        return None;
    }
    let lines = |wanted: &dyn Fn(&Case) -> bool, of: &dyn Fn(&Run) -> Vec<(f64, f64)>| {
        let wanted = first_runs.iter().filter(|run| wanted(&run.case));
        let lines = wanted.map(|run| Points {
            name: name(&run.case),
            style: Style::Line,
            points: of(run),
        });
        lines.collect::<Vec<_>>()
    };
    let progress = |run: &Run| run.scan.as_ref().map_or(Vec::new(), |s| s.progress.clone());
    let seconds = ("seconds", Scale::Linear);
    let mut panels = vec![panel(
        "progress".to_owned(),
        seconds,
        ("pages read", Scale::Linear),
        lines(&|_| true, &progress),
    )];
    for (what, variant) in [
        ("read-ahead off", Variant::NoReadAhead),
        ("read-ahead ±8", Variant::ReadAhead8),
        ("adaptive read-ahead, and QEMU", Variant::Plain),
    ] {
        let ran = |run: &Run| over_time(run, |times| times.ran() * 100.0);
        let points = lines(&|case| case.variant == variant, &ran);
        if !points.is_empty() {
            let title = format!("share of the time that tasks ran, {what}");
            panels.push(panel(title, seconds, ("%", Scale::Linear), points));
        }
    }
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let refaults = |run: &Run| over_time(run, |times| times.refaults as f64);
    panels.push(panel(
        "asynchronous faults of accesses that had faulted before".to_owned(),
        seconds,
        ("in 100 ms", Scale::Linear),
        lines(&|case| case.async_faults, &refaults),
    ));
    Some(chart(
        format!("Scans of the nano guest, with and without asynchronous faults: {network}"),
        panels,
    ))
}

/// Faults of several tasks that read the same pages, in the guest's account and the kernel's trace,
/// of each processor count.
#[allow(clippy::cast_precision_loss)] // counts far below 2^52
pub(super) fn nano_walks(runs: &[&Run], network: NetworkKind) -> Option<Chart> {
    let seconds = ("seconds", Scale::Linear);
    let mut panels = Vec::new();
    for case in cases(runs, |case| {
        case.network == network && matches!(case.workload, Workload::NanoWalk(_))
    }) {
        let Some(run) = runs.iter().find(|run| run.case == case) else {
            continue;
        };
        let line = |name: &str, value: fn(&GuestInterval) -> f64| Points {
            name: name.to_owned(),
            style: Style::Line,
            points: over_time(run, value),
        };
        let lines = vec![
            line("guest: asynchronous", |times| times.asynchronous as f64),
            line("guest: synchronous", |times| times.synchronous as f64),
            line("KVM: repeated", |times| {
                times.kvm.map_or(0.0, |kvm| kvm.repeated as f64)
            }),
        ];
        let how = match case.async_faults {
            true => "with asynchronous faults",
            false => "without",
        };
        let title = format!("{}, {how}", case.workload);
        panels.push(panel(
            title,
            seconds,
            ("faults in 100 ms", Scale::Linear),
            lines,
        ));
    }
    (!panels.is_empty()).then(|| {
        chart(
            format!("Tasks of the nano guest that read the same pages: {network}"),
            panels,
        )
    })
}

/// A value of each interval, at its end.
fn over_time(run: &Run, value: impl Fn(&GuestInterval) -> f64) -> Vec<(f64, f64)> {
    let guest = run.scan.as_ref().and_then(|scan| scan.guest.as_ref());
    let intervals = guest.map_or(&[][..], |guest| &guest.intervals);
    intervals
        .iter()
        .map(|times| (times.at, value(times)))
        .collect()
}

/// A short name: up to eight of them are in one line.
fn name(case: &Case) -> String {
    let what = match (case.system, case.variant) {
        (System::QemuPreempt, _) => "QEMU".to_owned(),
        (_, Variant::NoReadAhead) => "off".to_owned(),
        (_, Variant::ReadAhead8) => "±8".to_owned(),
        (_, Variant::Plain) => "adaptive".to_owned(),
        _ => case.system_label(),
    };
    let how = if case.async_faults { "async" } else { "sync" };
    format!("{what} {how}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::GuestAccount;
    use crate::record::{ScanOutcome, test_run};

    #[test]
    fn each_scan_is_drawn_in_the_panel_of_its_read_ahead() {
        let scan = |variant, async_faults| {
            let mut run = test_run(System::HikkoshiPostcopy, Workload::NanoScan, 1.0, 1.0);
            (run.case.variant, run.case.async_faults) = (variant, async_faults);
            let interval = GuestInterval {
                at: 0.1,
                ran_ms: 30.0,
                idle_ms: 70.0,
                refaults: 4,
                ..GuestInterval::default()
            };
            run.scan = Some(ScanOutcome {
                ms: 100.0,
                pages: 10,
                ran: 0.5,
                progress: vec![(0.0, 0.0), (0.1, 10.0)],
                guest: Some(GuestAccount {
                    intervals: vec![interval],
                }),
            });
            run
        };
        let runs = [
            scan(Variant::NoReadAhead, true),
            scan(Variant::NoReadAhead, false),
            scan(Variant::Plain, true),
        ];
        let runs: Vec<&Run> = runs.iter().collect();
        let chart = nano_scans(&runs, NetworkKind::Gbit(1)).unwrap();
        let lines: Vec<_> = chart
            .panels
            .iter()
            .map(|panel| panel.points.len())
            .collect();
        assert_eq!(lines, [3, 2, 1, 2], "progress, off, adaptive, refaults");
        assert_eq!(chart.panels[1].points[0].points, [(0.1, 30.0)]);
        assert_eq!(chart.panels[1].points[1].name, "off sync");
        assert_eq!(chart.panels[3].points[0].points, [(0.1, 4.0)]);
        assert!(nano_scans(&runs, NetworkKind::Gbit(10)).is_none());
    }
}
