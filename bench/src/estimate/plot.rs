//! The scatter plot: predicted and measured.

use super::{MODES, Moved};
use crate::host_info::HostInfo;
use crate::report::plot::{Chart, Panel, Points, Scale, Style, panel};

/// What is shown: the member, its unit, and the axes.
const SHOWN: [(&str, f64, &str, &str); 3] = [
    ("total_ms", 1e3, "predicted total time, s", "measured, s"),
    ("downtime_ms", 1.0, "predicted downtime, ms", "measured, ms"),
    ("bytes", 1e6, "predicted bytes, MB", "measured, MB"),
];

/// A panel for each; `None` if nothing was measured.
pub(super) fn scatter(moves: &[Moved], host: &HostInfo) -> Option<Chart> {
    let panels: Vec<Panel> = SHOWN
        .into_iter()
        .filter_map(|(member, unit, x, y)| {
            let of = |mode: &str| -> Vec<(f64, f64)> {
                let good = moves.iter().filter(|moved| moved.failure.is_none());
                good.filter(|moved| moved.case.mode == mode)
                    .filter_map(|moved| moved.pair(member))
                    .map(|(predicted, measured)| (predicted / unit, measured / unit))
                    .collect()
            };
            let mut points: Vec<_> = MODES
                .into_iter()
                .map(|mode| Points {
                    name: mode.to_owned(),
                    style: Style::Dots,
                    points: of(mode),
                })
                .collect();
            let values = points.iter().flat_map(|series| &series.points);
            let ends = values.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), point| {
                (
                    low.min(point.0).min(point.1),
                    high.max(point.0).max(point.1),
                )
            });
            if ends.1 == 0.0 {
                return None;
            }
            points.push(Points {
                name: "predicted = measured".to_owned(),
                style: Style::Line,
                points: vec![(ends.0, ends.0), (ends.1, ends.1)],
            });
            Some(panel(
                String::new(),
                (x, Scale::Log),
                (y, Scale::Log),
                points,
            ))
        })
        .collect();
    (!panels.is_empty()).then(|| Chart {
        title: "What hikkoshi estimate predicted, and what was measured".to_owned(),
        subtitle: host.in_two_lines(),
        panels,
    })
}
