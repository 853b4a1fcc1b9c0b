//! Systems side by side, each of hikkoshi's modes with its ratio to QEMU's counterpart.

use super::labels::{name, title};
use crate::plan::{System, Variant, Workload};
use crate::report::medians::Row;
use crate::report::table_format::{Table, number, ratio};

/// The systems, and below them the ratio of each of hikkoshi's modes to QEMU's counterparts.
pub(super) fn moves(group: &[&Row]) -> Option<Table> {
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
        let rivals = rivals(row.case.system, first.case.workload);
        let found = rivals
            .iter()
            .filter_map(|rival| group.iter().find(|other| other.case.system == *rival));
        lines.extend(found.map(|other| ratios(row, other)));
    }
    Some(Table {
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

/// QEMU's counterparts of a mode of hikkoshi.
fn rivals(system: System, load: Workload) -> &'static [System] {
    match (system, load) {
        (System::HikkoshiPrecopy, _) | (System::HikkoshiHybrid, Workload::Paced(_)) => {
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
