//! Pages sent, and stale ones, by the number of ranges that the dirty log is taken in.

use super::axis::Scale;
use super::chart::{Chart, Points, Style};
use super::figures::{cases, chart, panel};
use crate::plan::{Case, DEFAULT_RANGES, System, Variant, Workload};
use crate::record::Run;
use crate::report::medians::median;

/// The medians of pre-copy.
#[allow(clippy::cast_precision_loss)] // counts far below 2^52
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
            name: workload.name().replace("ranges-", ""),
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
            of(&|run| Some(run.report.account()?.stale_pages? as f64)),
        ),
        panel(
            "pages sent in all".to_owned(),
            x,
            ("pages", Scale::Linear),
            of(&|run| Some(run.report.account()?.pages.precopy as f64)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use crate::plan::Plan;
    use crate::record::test_report;
    use clap::Parser;

    #[test]
    fn a_line_goes_from_the_whole_log_to_the_default_ranges() {
        let plan = Plan::new(&Args::parse_from(["bench", "--only", "ranges-random-50"]));
        let runs: Vec<_> = (plan.unwrap().cases.iter().zip(1..))
            .map(|(case, number)| {
                let mut run = Run::new(case, 0);
                run.report = test_report(|account| account.stale_pages = Some(60 / number));
                run
            })
            .collect();
        let chart = log_ranges(&runs.iter().collect::<Vec<_>>()).unwrap();
        let line = &chart.panels[0].points[0];
        assert_eq!(line.name, "random-50");
        let expected = [
            (1.0, 60.0),
            (4.0, 30.0),
            (16.0, 20.0),
            (64.0, 15.0),
            (128.0, 12.0),
        ];
        assert_eq!(line.points, expected);
        assert!(log_ranges(&[]).is_none());
    }
}
