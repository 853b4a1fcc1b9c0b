//! Moves with the dirty log taken in different ranges.

use crate::plan::{System, Variant, Workload};
use crate::report::medians::Row;
use crate::report::table_format::{Table, number, ratio};

/// One row for each guest, mode and number of ranges.
pub(super) fn log_ranges(rows: &[Row]) -> Option<Table> {
    let whole = |row: &Row| {
        let same = |other: &&Row| {
            other.case.workload == row.case.workload
                && other.case.system == row.case.system
                && other.case.variant == Variant::LogRanges(1)
        };
        rows.iter().find(same).and_then(|whole| whole.pages_sent)
    };
    let lines: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let Workload::Written(written) = row.case.workload else {
                return None;
            };
            let ranges = match row.case.variant {
                Variant::LogRanges(ranges) => ranges.to_string(),
                _ => "default".to_owned(),
            };
            let mode = match row.case.system {
                System::HikkoshiHybrid => "hybrid",
                _ => "pre-copy",
            };
            let failed = match row.failed + row.called_off {
                0 => String::new(),
                failed => format!(" ({failed} failed or cancelled)"),
            };
            Some(vec![
                format!("{written}{failed}"),
                mode.to_owned(),
                ranges,
                number(row.rounds, 0),
                number(row.pages_sent, 0),
                ratio(row.pages_sent, whole(row)),
                number(row.stale_pages, 0),
                number(row.downtime_ms, 1),
                number(row.total_ms.map(|ms| ms / 1e3), 2),
                number(row.others_cores, 2),
            ])
        })
        .collect();
    (!lines.is_empty()).then(|| Table {
        title: "the log in ranges: guest, its writes, and how many of them for each page sent; \
                medians"
            .to_owned(),
        words: false,
        head: vec![
            "guest, writes, per page sent",
            "mode",
            "ranges",
            "rounds",
            "pages sent",
            "x whole",
            "stale",
            "downtime ms",
            "total s",
            "others",
        ],
        lines,
    })
}
