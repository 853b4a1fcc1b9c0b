//! Medians, side by side.

mod row;
mod sheet;

pub use row::{Row, rows};
pub use sheet::{Sheet, number, ratio};

use crate::client::Span;
use crate::plan::{Kind, Load, System, Variant};
use crate::record::Run;

/// Every table that the runs have numbers for.
pub fn sheets(runs: &[Run]) -> Vec<Sheet> {
    let rows = rows(runs);
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in &rows {
        let same = |group: &&mut Vec<&Row>| {
            let first = group.first().map(|first| (&first.line, &first.load));
            first == Some((&row.line, &row.load))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let mut sheets = Vec::new();
    for group in &groups {
        let Some(first) = group.first() else { continue };
        match first.case.load {
            Load::Fill => {}
            load if load.kind() == Kind::Scan => sheets.push(scans(group)),
            load if load.disk_bytes_per_second().is_some() => sheets.push(disks(group)),
            load if load.kind() == Kind::Web => sheets.push(web(group, runs)),
            _ => sheets.extend(moves(group)),
        }
    }
    sheets.extend(groups.iter().filter_map(|group| policies(group)));
    sheets.extend(fills(&rows));
    sheets
}

/// What it is about, and how often it was measured.
fn title(group: &[&Row]) -> String {
    let Some(first) = group.first() else {
        return String::new();
    };
    let (least, most) = group.iter().fold((usize::MAX, 0), |(least, most), row| {
        (least.min(row.runs), most.max(row.runs))
    });
    let runs = match least == most {
        true => most.to_string(),
        false => format!("{least} to {most}"),
    };
    let what = first.case.load.describe();
    format!("{}, {what}; medians of {runs}", first.line)
}

/// The system, and what became of its runs.
fn name(row: &Row) -> String {
    let mut name = row.system.clone();
    if row.called_off > 0 {
        name.push_str(" (does not converge)");
    }
    if row.failed > 0 {
        name.push_str(&format!(" ({} failed)", row.failed));
    }
    name
}

/// Systems beside one another, each column's ratio to QEMU's counterpart beneath.
fn moves(group: &[&Row]) -> Option<Sheet> {
    let group: Vec<&Row> = group
        .iter()
        .copied()
        .filter(|row| row.case.variant == Variant::Plain)
        .collect();
    let first = group.first()?;
    let mut lines: Vec<_> = group.iter().map(|row| cells(row)).collect();
    for row in group
        .iter()
        .filter(|row| row.case.system.hikkoshi_mode().is_some())
    {
        let rivals = rivals(row.case.system, first.case.load);
        let found = rivals
            .iter()
            .filter_map(|rival| group.iter().find(|other| other.case.system == *rival));
        lines.extend(found.map(|other| ratios(row, other)));
    }
    Some(Sheet {
        title: title(&group),
        words: false,
        head: vec![
            "system",
            "downtime ms",
            "own",
            "total s",
            "MB",
            "rounds",
            "faults",
            "mean µs",
            "p50 < µs",
            "p99 < µs",
            "max ms",
            "accesses/s",
            "accesses",
            "cpu s",
            "others",
        ],
        lines,
    })
}

/// Whom a mode of hikkoshi is compared with.
fn rivals(system: System, load: Load) -> &'static [System] {
    match (system, load) {
        (System::HikkoshiPrecopy, _) | (System::HikkoshiHybrid, Load::Paced(_)) => {
            &[System::QemuPrecopy, System::QemuMultifd]
        }
        _ => &[System::QemuPreempt, System::QemuPostcopy],
    }
}

fn cells(row: &Row) -> Vec<String> {
    vec![
        name(row),
        number(row.downtime_ms, 1),
        number(row.own_downtime_ms, 1),
        number(row.total_ms.map(|ms| ms / 1e3), 2),
        number(row.bytes.map(|bytes| bytes / 1e6), 0),
        number(row.rounds, 0),
        number(row.faults, 0),
        number(row.fault_us, 0),
        number(row.fault_p50_us, 0),
        number(row.fault_p99_us, 0),
        number(row.fault_max_us.map(|us| us / 1e3), 1),
        number(row.accesses_per_second, 0),
        number(row.accesses, 0),
        number(row.cpu_seconds, 1),
        number(row.others_cores, 2),
    ]
}

fn ratios(ours: &Row, theirs: &Row) -> Vec<String> {
    let ratio = |value: fn(&Row) -> Option<f64>| ratio(value(ours), value(theirs));
    vec![
        format!(
            "  {} / {}",
            ours.system.trim_start_matches("hikkoshi-"),
            theirs.system
        ),
        ratio(|row| row.downtime_ms),
        String::new(),
        ratio(|row| row.total_ms.filter(|_| row.called_off == 0)),
        ratio(|row| row.bytes.filter(|_| row.called_off == 0)),
        String::new(),
        ratio(|row| row.faults),
        ratio(|row| row.fault_us),
        ratio(|row| row.fault_p50_us),
        ratio(|row| row.fault_p99_us),
        ratio(|row| row.fault_max_us),
        ratio(|row| row.accesses_per_second),
        ratio(|row| row.accesses),
        ratio(|row| row.cpu_seconds.filter(|_| row.called_off == 0)),
        String::new(),
    ]
}

/// What a policy is worth: hikkoshi with one thing otherwise, beside the same without.
fn policies(group: &[&Row]) -> Option<Sheet> {
    let moved = |row: &&&Row| {
        let load = row.case.load;
        load.kind() == Kind::Move && load != Load::Fill && load.disk_bytes_per_second().is_none()
    };
    let variants: Vec<_> = group
        .iter()
        .filter(moved)
        .filter(|row| row.case.variant != Variant::Plain)
        .collect();
    let system = variants.first()?.case.system;
    let plain = group
        .iter()
        .filter(moved)
        .find(|row| row.case.system == system && row.case.variant == Variant::Plain);
    let lines = plain
        .into_iter()
        .chain(variants.iter().copied())
        .map(|row| {
            let beside = |value: fn(&Row) -> Option<f64>| match plain {
                Some(plain) => ratio(value(row), value(plain)),
                None => "-".to_owned(),
            };
            vec![
                name(row),
                number(row.total_ms.map(|ms| ms / 1e3), 2),
                beside(|row| row.total_ms),
                number(row.bytes.map(|bytes| bytes / 1e6), 0),
                number(row.faults, 0),
                beside(|row| row.faults),
                number(row.fault_us, 0),
                beside(|row| row.fault_us),
                number(row.fault_p99_us, 0),
                beside(|row| row.fault_p99_us),
                number(row.accesses_per_second, 0),
                beside(|row| row.accesses_per_second),
                number(row.cpu_seconds, 1),
                number(row.others_cores, 2),
            ]
        })
        .collect();
    let all: Vec<&Row> = variants.iter().map(|row| **row).collect();
    Some(Sheet {
        title: format!("policies and links: {}", title(&all)),
        words: false,
        head: vec![
            "system",
            "total s",
            "x",
            "MB",
            "faults",
            "x",
            "mean µs",
            "x",
            "p99 < µs",
            "x",
            "accesses/s",
            "x",
            "cpu s",
            "others",
        ],
        lines,
    })
}

/// Reading what is not there yet.
fn scans(group: &[&Row]) -> Sheet {
    let without = group
        .iter()
        .find(|row| row.case.variant == Variant::NoReadAhead)
        .or_else(|| {
            group
                .iter()
                .find(|row| row.case.system == System::QemuPreempt)
        });
    let lines = group
        .iter()
        .map(|row| {
            vec![
                name(row),
                number(row.scan_ms.map(|ms| ms / 1e3), 2),
                number(row.scan_pages, 0),
                ratio(row.scan_pages, without.and_then(|row| row.scan_pages)),
                number(row.scan_ran, 2),
                number(row.others_cores, 2),
            ]
        })
        .collect();
    Sheet {
        title: title(group),
        words: false,
        head: vec!["system", "s", "pages/s", "x", "processor ran", "others"],
        lines,
    }
}

/// A disk that is read by direct I/O during the move.
fn disks(group: &[&Row]) -> Sheet {
    let lines = group
        .iter()
        .map(|row| {
            let [before, during] = row.disk;
            let [drains, drains_ms, longest] = row.drains;
            vec![
                name(row),
                number(row.downtime_ms, 1),
                number(row.total_ms.map(|ms| ms / 1e3), 2),
                number(row.bytes.map(|bytes| bytes / 1e6), 0),
                number(row.rounds, 0),
                number(before.map(|rate| rate / 1e6), 1),
                number(during.map(|rate| rate / 1e6), 1),
                number(drains, 0),
                number(drains_ms, 1),
                number(longest, 1),
                number(row.bad_pages, 0),
                number(row.cpu_seconds, 1),
                number(row.others_cores, 2),
            ]
        })
        .collect();
    Sheet {
        title: title(group),
        words: false,
        head: vec![
            "system",
            "downtime ms",
            "total s",
            "MB",
            "rounds",
            "disk MB/s before",
            "during",
            "drains",
            "ms in all",
            "longest ms",
            "pages lost",
            "cpu s",
            "others",
        ],
        lines,
    }
}

/// What the background alone puts on the line.
fn fills(rows: &[Row]) -> Option<Sheet> {
    let lines: Vec<_> = rows
        .iter()
        .filter(|row| row.case.load == Load::Fill)
        .map(|row| {
            vec![
                format!("{} {}", row.line, name(row)),
                number(row.throughput.map(|bytes| bytes / 1e6), 0),
                number(line_part(row).map(|part| part * 100.0), 1),
                number(row.cpu_seconds, 1),
                number(row.others_cores, 2),
            ]
        })
        .collect();
    (!lines.is_empty()).then(|| Sheet {
        title: Load::Fill.describe(),
        words: false,
        head: vec![
            "line and system",
            "MB/s",
            "% of the line",
            "cpu s",
            "others",
        ],
        lines,
    })
}

/// How much of the line's rate was used, if it has one.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub fn line_part(row: &Row) -> Option<f64> {
    let shape = row.case.line.shape()?;
    Some(row.throughput? * 8.0 / shape.rate_bits as f64)
}

/// What the web server's clients saw: the first run of each.
fn web(group: &[&Row], runs: &[Run]) -> Sheet {
    let mut lines = Vec::new();
    for row in group {
        let run = runs
            .iter()
            .find(|run| run.case == row.case && run.failure.is_none());
        let outcome = run.and_then(|run| run.web.as_ref());
        let span = |span: Option<Span>| match span {
            Some(Span {
                p50_ms,
                p99_ms,
                max_ms,
                ..
            }) => format!("{p50_ms:.0} / {p99_ms:.0} / {max_ms:.0}"),
            None => "-".to_owned(),
        };
        lines.push(vec![
            name(row),
            number(row.downtime_ms, 1),
            number(row.total_ms.map(|ms| ms / 1e3), 2),
            span(outcome.and_then(|web| web.before)),
            span(outcome.and_then(|web| web.until_switch)),
            span(outcome.and_then(|web| web.until_end)),
            span(outcome.and_then(|web| web.after)),
            number(row.others_cores, 2),
        ]);
    }
    Sheet {
        title: format!("{}; response times p50 / p99 / max, ms", title(group)),
        words: false,
        head: vec![
            "system",
            "downtime ms",
            "total s",
            "before",
            "until the switch",
            "until the last page",
            "after",
            "others",
        ],
        lines,
    }
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
            variant: Variant::Plain,
            rounds: 1,
        };
        let mut run = Run::new(&case, 0);
        run.downtime_ms = Some(downtime);
        run.total_ms = Some(total);
        run
    }

    fn text(runs: &[Run]) -> String {
        sheets(runs).iter().map(Sheet::text).collect()
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

    #[test]
    fn policies_are_beside_the_plain_one_and_not_among_the_systems() {
        let plain = run(System::HikkoshiHybrid, Load::Busy, 20.0, 1000.0);
        let mut case = plain.case;
        case.variant = Variant::NoFollow;
        let mut other = Run::new(&case, 0);
        other.total_ms = Some(1500.0);
        let sheets = sheets(&[plain, other]);
        assert_eq!(sheets.len(), 2);
        assert_eq!(sheets[0].lines.len(), 1, "{}", sheets[0].text());
        let text = sheets[1].text();
        assert!(text.contains("hikkoshi-hybrid/no-follow"), "{text}");
        assert!(text.contains("1.50x"), "{text}");
    }

    #[test]
    fn a_disks_table_has_what_it_gave_and_what_was_lost() {
        let mut lost = run(System::HikkoshiPrecopy, Load::Disk20, 20.0, 1000.0);
        lost.case.variant = Variant::NoDrain;
        lost.disk = Some(crate::disk::DiskOutcome {
            before: Some(20e6),
            during: Some(19.5e6),
            bad_pages: 192,
            ..Default::default()
        });
        let sheets = sheets(&[lost]);
        assert_eq!(sheets.len(), 1, "it is no policy");
        let text = sheets[0].text();
        assert!(text.contains("hikkoshi-precopy/no-drain"), "{text}");
        assert!(text.contains(" 19.5 ") && text.contains(" 192 "), "{text}");
    }

    #[test]
    fn the_line_is_full_when_its_rate_is_used() {
        let mut filled = run(System::HikkoshiPostcopy, Load::Fill, 10.0, 1000.0);
        filled.throughput = Some(120e6);
        let sheets = sheets(&[filled]);
        assert_eq!(sheets.len(), 1);
        assert!(sheets[0].text().contains(" 96.0 "), "{}", sheets[0].text());
    }
}
