//! Pages sent, and stale ones, by the number of ranges that the dirty log is taken in.

use super::axis::Scale;
use super::chart::{Chart, Points, Style};
use super::figures::{cases, chart, panel};
use crate::plan::{Case, DEFAULT_RANGES, System, Variant, Workload};
use crate::record::Run;
use crate::report::medians::median;

/// The medians of pre-copy.
pub(super) fn log_ranges(runs: &[&Run]) -> Option<Chart> {
    let cases = cases(runs, |case| {
        case.system == System::HikkoshiPrecopy && matches!(case.workload, Workload::Written(_))
    });
    let mut workloads: Vec<Workload> = Vec::new();
    for case in &cases {
        if !workloads.contains(&case.workload) {
            workloads.push(case.workload);
        }
    }
    let of = |value: &dyn Fn(&Run) -> Option<f64>| -> Vec<Points> {
        let points = |workload: &Workload| Points {
            name: workload.describe(),
            style: Style::Line,
            points: cases
                .iter()
                .filter(|case| case.workload == *workload)
                .filter_map(|case| {
                    let same = runs.iter().filter(|run| run.case == *case);
                    let value = median(same.filter_map(|run| value(run)))?;
                    Some((f64::from(ranges(case)), value))
                })
                .collect(),
        };
        workloads.iter().map(points).collect()
    };
    let x = ("ranges (the last: default)", Scale::Log);
    let panels = vec![
        panel(
            "pages that were sent again because they were stale".to_owned(),
            x,
            ("pages", Scale::Linear),
            of(&|run| run.report["stale_pages"].as_f64()),
        ),
        panel(
            "pages sent in all".to_owned(),
            x,
            ("pages", Scale::Linear),
            of(&|run| run.report["pages"]["precopy"].as_f64()),
        ),
    ];
    let title = "Pre-copy with the dirty log taken in ranges: 1 Gbit/s".to_owned();
    (!cases.is_empty()).then(|| chart(title, panels))
}

fn ranges(case: &Case) -> u32 {
    match case.variant {
        Variant::LogRanges(ranges) => ranges,
        _ => DEFAULT_RANGES,
    }
}
