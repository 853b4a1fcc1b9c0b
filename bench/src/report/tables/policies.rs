//! hikkoshi with one policy changed, compared with its defaults.

use super::labels::{name, title};
use crate::plan::{Kind, Variant, Workload};
use crate::report::medians::Row;
use crate::report::table_format::{Table, number, ratio};

/// The effect of a policy: hikkoshi with one policy changed, compared with its defaults.
pub(super) fn policies(group: &[&Row]) -> Option<Table> {
    let moved = |row: &&&Row| {
        let load = row.case.workload;
        load.kind() == Kind::Move
            && load != Workload::Fill
            && load.disk_bytes_per_second().is_none()
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
    Some(Table {
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
