//! The nano guest, with asynchronous page faults and without.

use super::labels::{name, title};
use crate::plan::Workload;
use crate::record::Run;
use crate::report::medians::Row;
use crate::report::table_format::{Table, number, ratio};

/// Scans with asynchronous page faults and without.
pub(super) fn nano_scans(group: &[&Row]) -> Table {
    let lines = group
        .iter()
        .map(|row| {
            let mut cells = vec![
                name(row),
                number(row.scan_ms.map(|ms| ms / 1e3), 2),
                match row.case.async_faults {
                    true => ratio(row.scan_ms, without(group, row).and_then(|row| row.scan_ms)),
                    false => String::new(),
                },
            ];
            cells.extend(account(row));
            cells
        })
        .collect();
    Table {
        title: title(group),
        words: false,
        head: [&["system", "s", "x"], &ACCOUNT[..]].concat(),
        lines,
    }
}

/// What a number of tasks does to the counts of faults: KVM has at most 64 outstanding.
pub(super) fn nano_tasks(rows: &[Row]) -> Option<Table> {
    accounts(
        rows,
        |workload| matches!(workload, Workload::NanoTasks(_)),
        "tasks of the nano guest on one processor".to_owned(),
        &["line, tasks and system", "s", "pages/s"],
        |row| vec![number(row.scan_pages, 0)],
    )
}

/// Several tasks that read the same pages.
pub(super) fn nano_walks(rows: &[Row]) -> Option<Table> {
    accounts(
        rows,
        |workload| matches!(workload, Workload::NanoWalk(_)),
        Workload::NanoWalk(1).describe(),
        &[
            "line, processors and system",
            "s",
            "KVM: events",
            "KVM: repeated faults",
        ],
        |row| row.guest.kvm.map(|count| number(count, 0)).into(),
    )
}

/// A table of the rows with such a workload: their names and times, `own` cells, and what the guest
/// counted.
fn accounts(
    rows: &[Row],
    is_wanted: fn(Workload) -> bool,
    title: String,
    head: &[&'static str],
    own: fn(&Row) -> Vec<String>,
) -> Option<Table> {
    let cells = |row: &Row| {
        let mut cells = vec![
            format!("{} {} {}", row.network, row.workload, name(row)),
            number(row.scan_ms.map(|ms| ms / 1e3), 2),
        ];
        cells.extend(own(row));
        cells.extend(account(row));
        cells
    };
    let group = rows.iter().filter(|row| is_wanted(row.case.workload));
    let lines: Vec<_> = group.map(cells).collect();
    (!lines.is_empty()).then(|| Table {
        title,
        words: false,
        head: [head, &ACCOUNT[..]].concat(),
        lines,
    })
}

/// The steps of a page fault.
pub(super) fn timelines(runs: &[Run]) -> Vec<Table> {
    let good = runs.iter().filter(|run| run.failure.is_none());
    good.filter_map(|run| Some((run, run.timeline.as_ref()?)))
        .map(|(run, timeline)| {
            let lines = timeline.steps.iter().enumerate().map(|(number, step)| {
                vec![
                    format!("{}. {}: {}", number + 1, step.place.name(), step.what),
                    number_of(step.median_us),
                    number_of(step.p90_us),
                ]
            });
            Table {
                title: format!(
                    "{}, {}; {} faults",
                    run.case.network,
                    run.case.workload.describe(),
                    timeline.faults
                ),
                words: false,
                head: vec!["step", "median, µs after the first", "p90"],
                lines: lines.collect(),
            }
        })
        .collect()
}

fn number_of(value: f64) -> String {
    number(Some(value), 1)
}

/// The case of `row` without asynchronous page faults.
fn without<'a>(group: &[&'a Row], row: &Row) -> Option<&'a Row> {
    let same = |other: &&&Row| {
        (other.case.system, other.case.variant) == (row.case.system, row.case.variant)
            && !other.case.async_faults
    };
    group.iter().find(same).copied()
}

/// The columns of [`account`].
const ACCOUNT: [&str; 13] = [
    "ran %",
    "idle %",
    "stalled %",
    "KVM %",
    "scheduler %",
    "ran, of runnable %",
    "not stalled, of runnable %",
    "mean µs",
    "asynchronous",
    "synchronous",
    "refaults",
    "MB",
    "others",
];

/// What the guest counted, and the bytes on the network.
fn account(row: &Row) -> Vec<String> {
    let guest = &row.guest;
    let percent = |share: Option<f64>| number(share.map(|share| share * 100.0), 0);
    vec![
        percent(guest.ran),
        percent(guest.idle),
        percent(guest.stalled),
        percent(guest.in_kvm),
        percent(guest.scheduler),
        percent(guest.ran_if_runnable),
        percent(guest.not_stalled),
        number(guest.fault_us, 0),
        number(guest.asynchronous, 0),
        number(guest.synchronous, 0),
        number(guest.refaults, 0),
        number(row.bytes.map(|bytes| bytes / 1e6), 0),
        number(row.others_cores, 2),
    ]
}
