//! Scans, throttled disks, background throughput and a guest's clients.

use super::labels::{name, runs, title};
use crate::meter::Span;
use crate::plan::{System, Variant, Workload};
use crate::record::{ClientsOutcome, Run, WebOutcome};
use crate::report::medians::{Row, median, network_part};
use crate::report::table_format::{Table, number, ratio};

/// Reading memory that has not been received yet.
pub(super) fn scans(group: &[&Row]) -> Table {
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
    Table {
        title: title(group),
        words: false,
        head: vec!["system", "s", "pages/s", "x", "processor ran", "others"],
        lines,
    }
}

/// A disk that is read by direct I/O during the migration.
pub(super) fn disks(group: &[&Row]) -> Table {
    let lines = group
        .iter()
        .map(|row| {
            let [before, during] = row.disk;
            let [p99_before, p99_during] = row.disk_p99_ms;
            let [drains, drains_ms, longest] = row.drains;
            vec![
                name(row),
                number(row.downtime_ms, 1),
                number(row.total_ms.map(|ms| ms / 1e3), 2),
                number(row.bytes.map(|bytes| bytes / 1e6), 0),
                number(row.rounds, 0),
                number(before.map(|rate| rate / 1e6), 1),
                number(during.map(|rate| rate / 1e6), 1),
                number(p99_before, 0),
                number(p99_during, 0),
                number(drains, 0),
                number(drains_ms, 1),
                number(longest, 1),
                number(row.bad_pages, 0),
                number(row.cpu_seconds, 1),
                number(row.others_cores, 2),
            ]
        })
        .collect();
    Table {
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
            "p99 of a read ms before",
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

/// Throughput of the background alone.
pub(super) fn fills(rows: &[Row]) -> Option<Table> {
    let group: Vec<&Row> = rows
        .iter()
        .filter(|row| row.case.workload == Workload::Fill)
        .collect();
    let lines = group.iter().map(|row| {
        vec![
            format!("{} {}", row.network, name(row)),
            number(row.throughput.map(|bytes| bytes / 1e6), 0),
            number(network_part(row).map(|part| part * 100.0), 1),
            number(row.cpu_seconds, 1),
            number(row.others_cores, 2),
        ]
    });
    (!group.is_empty()).then(|| Table {
        title: format!("{}; medians of {}", Workload::Fill.describe(), runs(&group)),
        words: false,
        head: vec![
            "line and system",
            "MB/s",
            "% of the line",
            "cpu s",
            "others",
        ],
        lines: lines.collect(),
    })
}

/// What two clients noticed: medians, and the worst run.
pub(super) fn clients(group: &[&Row], runs: &[Run]) -> Table {
    let mut lines = Vec::new();
    for row in group {
        let of_row = |run: &&Run| run.case == row.case && run.failure.is_none();
        let outcomes: Vec<_> = runs
            .iter()
            .filter(of_row)
            .filter_map(|run| run.clients)
            .collect();
        let both = |value: fn(&ClientsOutcome) -> f64| {
            let values = || outcomes.iter().map(value);
            match median(values()) {
                Some(middle) => format!("{middle:.1} / {:.1}", values().fold(0.0, f64::max)),
                None => "-".to_owned(),
            }
        };
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        lines.push(vec![
            name(row),
            number(row.downtime_ms, 1),
            number(row.own_downtime_ms, 1),
            number(row.total_ms.map(|ms| ms / 1e3), 2),
            both(|clients| clients.request_gaps_ms.longest),
            both(|clients| clients.request_gaps_ms.until_stop),
            both(|clients| clients.request_gaps_ms.switchover),
            both(|clients| clients.request_gaps_ms.until_end),
            both(|clients| clients.datagram_gaps_ms.longest),
            both(|clients| clients.datagram_gaps_ms.until_stop),
            both(|clients| clients.datagram_gaps_ms.switchover),
            both(|clients| clients.datagram_gaps_ms.until_end),
            both(|clients| clients.lost as f64),
            both(|clients| clients.repeated as f64),
            number(row.others_cores, 2),
        ]);
    }
    Table {
        title: format!("{}; median / worst", title(group)),
        words: false,
        head: vec![
            "system",
            "downtime ms",
            "reported",
            "total s",
            "requests: longest gap, ms",
            "until STOP",
            "switchover",
            "until the end",
            "datagrams: longest gap, ms",
            "until STOP",
            "switchover",
            "until the end",
            "lost",
            "repeated",
            "others",
        ],
        lines,
    }
}

/// Response times of the web server's clients and answers a second: each percentile is the median
/// of those of the runs.
pub(super) fn web(group: &[&Row], runs: &[Run]) -> Table {
    let mut lines = Vec::new();
    for row in group {
        let span = |of: fn(&WebOutcome) -> Option<Span>| {
            let spans: Vec<Span> = runs
                .iter()
                .filter(|run| run.case == row.case && run.failure.is_none())
                .filter_map(|run| of(run.web.as_ref()?))
                .collect();
            let of = |part: fn(&Span) -> f64| number(median(spans.iter().map(part)), 0);
            match spans.is_empty() {
                true => "-".to_owned(),
                false => {
                    let parts = [of(|it| it.p50_ms), of(|it| it.p99_ms), of(|it| it.max_ms)];
                    parts.join(" / ")
                }
            }
        };
        lines.push(vec![
            name(row),
            number(row.downtime_ms, 1),
            number(row.total_ms.map(|ms| ms / 1e3), 2),
            span(|web| web.before),
            span(|web| web.until_switch),
            span(|web| web.until_end),
            span(|web| web.after),
            number(row.web_per_second[0], 0),
            number(row.web_per_second[1], 0),
            number(row.others_cores, 2),
        ]);
    }
    Table {
        title: format!("{}; response times p50 / p99 / max, ms", title(group)),
        words: false,
        head: vec![
            "system",
            "downtime ms",
            "total s",
            "before",
            "until switchover",
            "until the last page",
            "after",
            "answers/s before",
            "in the first second",
            "others",
        ],
        lines,
    }
}
