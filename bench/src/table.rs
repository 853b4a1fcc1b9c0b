//! Medians, side by side.

use std::fmt::Write as _;

use serde::Serialize;

use crate::plan::{Load, System};
use crate::record::Run;

/// The median over the rounds of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `LINE`.
    pub line: String,
    /// `WORKLOAD`.
    pub load: String,
    /// `SYSTEM`.
    pub system: &'static str,
    /// Runs with numbers.
    pub runs: usize,
    /// Runs that failed.
    pub failed: usize,
    /// Runs that did not converge.
    pub called_off: usize,
    /// ms.
    pub downtime_ms: Option<f64>,
    /// ms, by the system's own account.
    pub own_downtime_ms: Option<f64>,
    /// ms.
    pub total_ms: Option<f64>,
    /// On the line.
    pub bytes: Option<f64>,
    /// Rounds of pre-copy.
    pub rounds: Option<f64>,
    /// Slow accesses from the switch to the last page.
    pub faults: Option<f64>,
    /// Their mean, µs.
    pub fault_us: Option<f64>,
    /// 99 in 100 of them were below this, µs.
    pub fault_p99_us: Option<f64>,
    /// The longest access, µs.
    pub fault_max_us: Option<f64>,
    /// Accesses a second from the switch to the last page.
    pub accesses_per_second: Option<f64>,
    /// Processor seconds.
    pub cpu_seconds: Option<f64>,
    /// Processors that others kept busy.
    pub others_cores: Option<f64>,
}

/// The median of what there is.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => values.get(middle).copied(),
        _ => Some((values.get(middle - 1)? + values.get(middle)?) / 2.0),
    }
}

/// A row for each case, in the order of their first runs.
pub fn rows(runs: &[Run]) -> Vec<Row> {
    let mut labels: Vec<&str> = Vec::new();
    for run in runs {
        if !labels.contains(&run.label.as_str()) {
            labels.push(&run.label);
        }
    }
    labels
        .into_iter()
        .filter_map(|label| row(runs.iter().filter(|run| run.label == label).collect()))
        .collect()
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn row(runs: Vec<&Run>) -> Option<Row> {
    let case = runs.first()?.case;
    let good: Vec<_> = runs.iter().filter(|run| run.failure.is_none()).collect();
    let of = |value: &dyn Fn(&Run) -> Option<f64>| median(good.iter().filter_map(|run| value(run)));
    let accesses = |value: &dyn Fn(&crate::latency::Accesses) -> Option<f64>| {
        of(&|run| run.accesses.as_ref().and_then(value)).filter(|_| case.system.is_postcopy())
    };
    Some(Row {
        line: case.line.to_string(),
        load: case.load.to_string(),
        system: case.system.name(),
        runs: good.len(),
        failed: runs.len() - good.len(),
        called_off: good.iter().filter(|run| run.called_off).count(),
        downtime_ms: of(&|run| run.downtime_ms),
        own_downtime_ms: of(&|run| run.own_downtime_ms),
        total_ms: of(&|run| run.total_ms),
        bytes: of(&|run| run.bytes.map(|bytes| bytes as f64)),
        rounds: of(&|run| run.rounds.map(|rounds| rounds as f64)),
        faults: accesses(&|a| Some(a.slow as f64)),
        fault_us: accesses(&|a| Some(a.slow_mean_us)),
        fault_p99_us: accesses(&|a| a.slow_p99_below_us.map(|us| us as f64)),
        fault_max_us: accesses(&|a| Some(a.max_us)),
        accesses_per_second: accesses(&|a| a.per_second),
        cpu_seconds: of(&|run| Some(run.cpu_seconds)),
        others_cores: of(&|run| Some(run.others_cores)),
    })
}

/// A line of a table.
type Cells = [String; 13];

const HEAD: [&str; 13] = [
    "system",
    "downtime ms",
    "own",
    "total s",
    "MB",
    "rounds",
    "faults",
    "mean µs",
    "p99 < µs",
    "max ms",
    "accesses/s",
    "cpu s",
    "others",
];

/// The tables: one for each line and workload, each column's ratio to QEMU's counterpart beneath.
pub fn text(runs: &[Run]) -> String {
    let rows = rows(runs);
    let mut text = String::new();
    for group in rows.chunk_by(|a, b| (&a.line, &a.load) == (&b.line, &b.load)) {
        let Some(first) = group.first() else { continue };
        let what = match runs
            .iter()
            .find(|r| {
                r.label
                    .starts_with(&format!("{}/{}/", first.line, first.load))
            })
            .map(|r| r.case.load)
        {
            Some(Load::Paced(rate)) => format!("paced: {rate} pages a second"),
            Some(Load::Endless) => "full speed, pre-copy with a time limit".to_owned(),
            _ => "busy: full speed".to_owned(),
        };
        let _ = writeln!(text, "{}, {what}, medians of {}", first.line, first.runs);
        let mut lines = vec![HEAD.map(str::to_owned)];
        lines.extend(group.iter().map(cells));
        for row in group
            .iter()
            .filter(|row| row.system.starts_with("hikkoshi"))
        {
            lines.extend(
                rivals(row.system, first.load.as_str())
                    .iter()
                    .filter_map(|rival| {
                        group
                            .iter()
                            .find(|other| other.system == rival.name())
                            .map(|other| ratios(row, other))
                    }),
            );
        }
        text.push_str(&align(&lines));
        text.push('\n');
    }
    text
}

/// Whom a mode of hikkoshi is compared with.
fn rivals(system: &str, load: &str) -> &'static [System] {
    match (system, load) {
        ("hikkoshi-precopy", _) | ("hikkoshi-hybrid", "paced") => {
            &[System::QemuPrecopy, System::QemuMultifd]
        }
        _ => &[System::QemuPreempt, System::QemuPostcopy],
    }
}

fn cells(row: &Row) -> Cells {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let mut name = row.system.to_owned();
    if row.called_off > 0 {
        name.push_str(" (does not converge)");
    }
    if row.failed > 0 {
        let _ = write!(name, " ({} failed)", row.failed);
    }
    [
        name,
        number(row.downtime_ms, 1),
        number(row.own_downtime_ms, 1),
        number(row.total_ms.map(|ms| ms / 1e3), 2),
        number(row.bytes.map(|bytes| bytes / 1e6), 0),
        number(row.rounds, 0),
        number(row.faults, 0),
        number(row.fault_us, 0),
        number(row.fault_p99_us, 0),
        number(row.fault_max_us.map(|us| us / 1e3), 1),
        number(row.accesses_per_second, 0),
        number(row.cpu_seconds, 1),
        number(row.others_cores, 2),
    ]
}

fn ratios(ours: &Row, theirs: &Row) -> Cells {
    let ratio = |value: fn(&Row) -> Option<f64>| match (value(ours), value(theirs)) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}x", ours / theirs),
        _ => "-".to_owned(),
    };
    let short = |name: &'static str| name.trim_start_matches("hikkoshi-");
    [
        format!("  {} / {}", short(ours.system), theirs.system),
        ratio(|row| row.downtime_ms),
        String::new(),
        ratio(|row| row.total_ms.filter(|_| row.called_off == 0)),
        ratio(|row| row.bytes.filter(|_| row.called_off == 0)),
        String::new(),
        ratio(|row| row.faults),
        ratio(|row| row.fault_us),
        String::new(),
        ratio(|row| row.fault_max_us),
        ratio(|row| row.accesses_per_second),
        ratio(|row| row.cpu_seconds.filter(|_| row.called_off == 0)),
        String::new(),
    ]
}

/// Columns of equal width, the first to the left, the others to the right.
fn align(lines: &[Cells]) -> String {
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let mut text = String::new();
    for line in lines {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = width(column);
            let _ = match column {
                0 => write!(shown, "  {cell:<width$}"),
                _ => write!(shown, "  {cell:>width$}"),
            };
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Case, LineKind};

    pub(crate) fn run(system: System, load: Load, downtime: f64, total: f64) -> Run {
        let case = Case {
            line: LineKind::Gbit(1),
            load,
            system,
        };
        let mut run = Run::new(&case, 0);
        run.downtime_ms = Some(downtime);
        run.total_ms = Some(total);
        run
    }

    #[test]
    fn medians() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
    }

    #[test]
    fn a_failed_run_counts_as_failed_and_not_as_a_number() {
        let mut failed = run(System::QemuPrecopy, Load::Paced(5), 9000.0, 1.0);
        failed.failure = Some("broken".to_owned());
        let runs = [
            run(System::HikkoshiPrecopy, Load::Paced(5), 20.0, 1000.0),
            run(System::QemuPrecopy, Load::Paced(5), 200.0, 2000.0),
            failed,
        ];
        let rows = rows(&runs);
        assert_eq!((rows[1].runs, rows[1].failed), (1, 1));
        assert_eq!(rows[1].downtime_ms, Some(200.0));
        let text = text(&runs);
        assert!(text.contains("precopy / qemu-precopy"), "{text}");
        assert!(text.contains("0.10x") && text.contains("0.50x"), "{text}");
        assert!(text.contains("(1 failed)"), "{text}");
    }
}
