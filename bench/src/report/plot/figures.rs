//! The plots.

use super::axis::{Axis, Scale};
use super::chart::{Chart, Panel, Points, Style};
use super::nano::{nano_scans, nano_walks};
use crate::host_info::HostInfo;
use crate::plan::{Case, NetworkKind, Variant, Workload};
use crate::record::{Run, WebOutcome};

/// Seconds shown before the switchover.
const BEFORE: f64 = 2.0;

/// Every plot that the runs have numbers for, with its file name.
pub(super) fn all(host: &HostInfo, runs: &[Run]) -> Vec<(String, Chart)> {
    let good: Vec<&Run> = runs.iter().filter(|run| run.failure.is_none()).collect();
    let mut charts = Vec::new();
    let mut networks: Vec<NetworkKind> = Vec::new();
    for run in &good {
        if !networks.contains(&run.case.network) {
            networks.push(run.case.network);
        }
    }
    for network in networks {
        for workload in [
            Workload::Busy,
            Workload::Huge,
            Workload::Scale,
            Workload::ScaleBusy,
        ] {
            charts.extend(
                faults(&good, network, workload)
                    .map(|c| (format!("faults-{workload}-{network}.svg"), c)),
            );
        }
        charts.extend(switch(&good, network).map(|c| (format!("switch-{network}.svg"), c)));
        charts.extend(scans(&good, network).map(|c| (format!("scan-{network}.svg"), c)));
        charts.extend(nano_scans(&good, network).map(|c| (format!("nano-scan-{network}.svg"), c)));
        charts.extend(nano_walks(&good, network).map(|c| (format!("nano-walk-{network}.svg"), c)));
        for workload in [Workload::Web, Workload::NanoWeb, Workload::NanoWebRequests] {
            charts.extend(
                web(&good, network, workload).map(|c| (format!("{workload}-{network}.svg"), c)),
            );
        }
    }
    for (_, chart) in &mut charts {
        chart.subtitle = host.in_two_lines();
    }
    charts
}

/// The cases of the runs that `wanted` accepts, in order.
pub(super) fn cases(runs: &[&Run], wanted: impl Fn(&Case) -> bool) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for run in runs.iter().filter(|run| wanted(&run.case)) {
        if !cases.contains(&run.case) {
            cases.push(run.case);
        }
    }
    cases
}

pub(super) fn chart(title: String, panels: Vec<Panel>) -> Chart {
    Chart {
        title,
        subtitle: Default::default(),
        panels,
    }
}

pub(crate) fn panel(
    title: String,
    x: (&'static str, Scale),
    y: (&'static str, Scale),
    points: Vec<Points>,
) -> Panel {
    let values =
        |of: fn(&(f64, f64)) -> f64| points.iter().flat_map(move |p| p.points.iter().map(of));
    Panel {
        title,
        x: Axis::around(x.0, x.1, values(|point| point.0)),
        y: Axis::around(y.0, y.1, values(|point| point.1)),
        points,
        marks: Vec::new(),
    }
}

/// The fraction of faults that take longer than a time.
fn faults(runs: &[&Run], network: NetworkKind, workload: Workload) -> Option<Chart> {
    let systems = cases(runs, |case| {
        (case.network, case.workload, case.variant) == (network, workload, Variant::Plain)
    });
    let points: Vec<_> = systems
        .iter()
        .filter_map(|case| {
            let of = runs.iter().filter(|run| run.case == *case);
            let mut buckets: Vec<(f64, u64)> = Vec::new();
            for slow in of.filter_map(|run| run.slow.as_ref()) {
                for &(below, count) in &slow.histogram {
                    match buckets
                        .iter_mut()
                        .find(|(other, _)| (*other - below).abs() < 1e-9)
                    {
                        Some((_, sum)) => *sum += count,
                        None => buckets.push((below, count)),
                    }
                }
            }
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            (!buckets.is_empty()).then(|| Points {
                name: case.system.name().to_owned(),
                style: Style::Line,
                points: longer(&buckets),
            })
        })
        .collect();
    let what = format!("Fault latency measured in the guest: {network}, {workload}");
    let axes = (
        ("µs", Scale::Log),
        ("fraction of faults that take longer", Scale::Log),
    );
    (!points.is_empty()).then(|| chart(what, vec![panel(String::new(), axes.0, axes.1, points)]))
}

/// Turns counts below bounds into fractions above each bound.
#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn longer(buckets: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let all: u64 = buckets.iter().map(|bucket| bucket.1).sum();
    let mut left = all;
    let mut points = Vec::new();
    for &(below, count) in buckets {
        left -= count;
        // The last value is zero and cannot be drawn on this axis.
        if left > 0 {
            points.push((below, left as f64 / all.max(1) as f64));
        }
    }
    points
}

/// The guest's accesses and the network traffic, from before the switchover until after the end.
fn switch(runs: &[&Run], network: NetworkKind) -> Option<Chart> {
    let systems = cases(runs, |case| {
        let busy = (case.network, case.workload, case.variant)
            == (network, Workload::Busy, Variant::Plain);
        busy && case.system.is_postcopy()
    });
    let firsts: Vec<&Run> = systems
        .iter()
        .filter_map(|case| runs.iter().find(|run| run.case == *case).copied())
        .collect();
    let last = firsts
        .iter()
        .map(|run| run.series.ended)
        .fold(0.0, f64::max)
        + 1.0;
    let shown = |points: &[(f64, f64)], scale: f64| -> Vec<(f64, f64)> {
        let inside = points.iter().filter(|(t, _)| (-BEFORE..=last).contains(t));
        inside.map(|(t, value)| (*t, value * scale)).collect()
    };
    let of = |series: &dyn Fn(&Run) -> Vec<(f64, f64)>| -> Vec<Points> {
        firsts
            .iter()
            .map(|run| Points {
                name: run.case.system.name().to_owned(),
                style: Style::Line,
                points: series(run),
            })
            .collect()
    };
    // An interval without an access is drawn at one a second.
    let accesses = of(&|run| {
        let shown = shown(&run.series.accesses, 1.0).into_iter();
        shown.map(|(t, rate)| (t, rate.max(1.0))).collect()
    });
    let bytes = of(&|run| shown(&run.series.bytes, 1e-6));
    if accesses.iter().all(|points| points.points.is_empty()) {
        return None;
    }
    let seconds = ("seconds after the switchover", Scale::Linear);
    let mut panels = vec![
        panel(
            "memory accesses of the guest".to_owned(),
            seconds,
            ("accesses/s", Scale::Log),
            accesses,
        ),
        panel(
            "traffic sent by the source".to_owned(),
            seconds,
            ("MB/s", Scale::Linear),
            bytes,
        ),
    ];
    for panel in &mut panels {
        panel.x = Axis::around(seconds.0, seconds.1, [-BEFORE, last].into_iter());
        panel.marks.push((0.0, "switchover"));
    }
    Some(chart(format!("Switchover: {network}, busy"), panels))
}

/// The progress of the scans.
fn scans(runs: &[&Run], network: NetworkKind) -> Option<Chart> {
    let mut panels = Vec::new();
    for workload in [Workload::Scan, Workload::Sequential] {
        let points: Vec<_> = cases(runs, |case| {
            (case.network, case.workload) == (network, workload)
        })
        .iter()
        .filter_map(|case| {
            let run = runs.iter().find(|run| run.case == *case)?;
            let scan = run.scan.as_ref()?;
            Some(Points {
                // All of them are post-copy.
                name: format!(
                    "{} (ran {:.0} %)",
                    case.system_label().replace("hikkoshi-postcopy", "hikkoshi"),
                    scan.ran * 100.0
                ),
                style: Style::Line,
                points: scan.progress.clone(),
            })
        })
        .collect();
        if !points.is_empty() {
            let axes = (("seconds", Scale::Linear), ("pages read", Scale::Linear));
            panels.push(panel(workload.describe(), axes.0, axes.1, points));
        }
    }
    let title = format!("Reading memory that has not been received yet: {network}");
    (!panels.is_empty()).then(|| chart(title, panels))
}

/// When the web server's clients sent requests, and their response times.
fn web(runs: &[&Run], network: NetworkKind, workload: Workload) -> Option<Chart> {
    let systems = cases(runs, |case| {
        (case.network, case.workload) == (network, workload)
    });
    let mut panels: Vec<_> = systems
        .iter()
        .filter_map(|case| {
            let web = runs.iter().find(|run| run.case == *case)?.web.as_ref()?;
            let points = vec![Points {
                name: "responses".to_owned(),
                style: Style::Dots,
                points: web.answers.clone(),
            }];
            let axes = (
                ("seconds after the command", Scale::Linear),
                ("ms", Scale::Log),
            );
            let mut panel = panel(case.system_label(), axes.0, axes.1, points);
            panel.marks = vec![
                (0.0, "command"),
                (web.resume_s, "switchover"),
                (web.end_s, "last page"),
            ];
            Some(panel)
        })
        .collect();
    // One scale for all panels, so that they can be compared.
    let ends = |of: fn(&Panel) -> (f64, f64)| {
        let all = panels.iter().map(of);
        all.fold(
            (f64::INFINITY, f64::NEG_INFINITY),
            |(low, high), (min, max)| (low.min(min), high.max(max)),
        )
    };
    let (x, y) = (ends(|p| (p.x.min, p.x.max)), ends(|p| (p.y.min, p.y.max)));
    for panel in &mut panels {
        (panel.x.min, panel.x.max) = x;
        (panel.y.min, panel.y.max) = y;
    }
    let server = match workload {
        Workload::NanoWeb => "The nano guest's server",
        Workload::NanoWebRequests => "The nano guest's server, no background",
        _ => "Web server",
    };
    if workload != Workload::Web && !panels.is_empty() {
        let rates = over_time(runs, &systems, "answers a second", |web| {
            web.per_second.clone()
        });
        let ran = over_time(runs, &systems, "% of the time that tasks ran", |web| {
            let percent = web.ran.iter().map(|(at, share)| (*at, share * 100.0));
            percent.collect()
        });
        panels.splice(0..0, [rates, ran]);
    }
    let title = format!("{server} during a migration: {network}");
    (!panels.is_empty()).then(|| chart(title, panels))
}

/// A line of each system.
fn over_time(
    runs: &[&Run],
    systems: &[Case],
    what: &'static str,
    of: impl Fn(&WebOutcome) -> Vec<(f64, f64)>,
) -> Panel {
    let lines = systems.iter().filter_map(|case| {
        let web = runs.iter().find(|run| run.case == *case)?.web.as_ref()?;
        Some(Points {
            name: case.system_label(),
            style: Style::Line,
            points: of(web),
        })
    });
    panel(
        String::new(),
        ("seconds after the command", Scale::Linear),
        (what, Scale::Linear),
        lines.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::System;
    use crate::record::test_run as run;
    use crate::record::{Series, SlowAccesses};

    fn slow(histogram: Vec<(f64, u64)>) -> SlowAccesses {
        SlowAccesses {
            count: histogram.iter().map(|bucket| bucket.1).sum(),
            mean_us: 0.0,
            p50_us: None,
            p99_us: None,
            histogram,
        }
    }

    #[test]
    fn fractions_above_bounds_decrease() {
        let points = longer(&[(36.0, 90), (64.0, 9), (1152.0, 1)]);
        assert_eq!(points, [(36.0, 0.1), (64.0, 0.01)]);
    }

    #[test]
    fn only_successful_runs_are_drawn() {
        let mut one = run(System::HikkoshiHybrid, Workload::Busy, 1.0, 1.0);
        one.slow = Some(slow(vec![(36.0, 90), (64.0, 10)]));
        one.series = Series {
            ended: 3.0,
            accesses: vec![(-1.0, 1e6), (0.1, 0.0), (1.0, 2e4), (99.0, 1e6)],
            bytes: vec![(0.0, 1e8)],
        };
        let mut failed = run(System::QemuPreempt, Workload::Busy, 1.0, 1.0);
        failed.failure = Some("broken".to_owned());
        let runs = [one, failed];
        let good: Vec<&Run> = runs.iter().filter(|run| run.failure.is_none()).collect();
        let network = NetworkKind::Gbit(1);
        let svg = faults(&good, network, Workload::Busy).unwrap();
        let svg = svg.svg().unwrap();
        assert!(svg.contains("hikkoshi-hybrid") && !svg.contains("qemu-preempt"));
        let through = switch(&good, network).unwrap();
        assert_eq!(through.panels.len(), 2);
        assert_eq!(
            through.panels[0].points[0].points.len(),
            3,
            "99 s is after the end"
        );
        assert!(scans(&good, network).is_none());
        assert!(web(&good, network, Workload::Web).is_none());
        assert!(faults(&good, NetworkKind::Loopback, Workload::Busy).is_none());
    }
}
