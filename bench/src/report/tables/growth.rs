//! What grows with the size of the guest.

use super::labels::{name, runs};
use crate::plan::Workload;
use crate::report::medians::Row;
use crate::report::table_format::{Table, number};

/// Guests of several sizes: the move, its switchover, and the memory of both sides.
pub(super) fn growth(rows: &[Row]) -> Option<Table> {
    let group: Vec<&Row> = rows
        .iter()
        .filter(|row| matches!(row.case.workload, Workload::Grow(_)))
        .collect();
    let lines = group.iter().map(|row| {
        let steps = row.switchover.iter();
        let steps: Vec<_> = steps.map(|(step, ms)| format!("{step} {ms:.1}")).collect();
        vec![
            format!("{} {} {}", row.network, row.workload, name(row)),
            number(row.total_ms.map(|ms| ms / 1e3), 2),
            number(row.downtime_ms, 1),
            number(row.fault_us, 0),
            number(row.memory_mib[0], 0),
            number(row.memory_mib[1], 0),
            number(row.others_cores, 2),
            steps.join(", "),
        ]
    });
    (!group.is_empty()).then(|| Table {
        title: format!(
            "guests of 1 to 8 GiB of private memory, of which 80 % are written at random at full \
             speed; medians of {}",
            runs(&group)
        ),
        words: false,
        head: vec![
            "line, guest and system",
            "total s",
            "downtime ms",
            "mean fault µs",
            "most memory of migrate, MiB",
            "of receive, MiB",
            "others",
            "steps of the switchover at the source, ms after the pause",
        ],
        lines: lines.collect(),
    })
}
