//! The plan as text.

use std::fmt::Write as _;

use hikkoshi_account::{Predicted, rate_text};
use hikkoshi_status::{DeadlineMet, EvacuationPlan, PlannedMove};

use crate::output::units::{bytes, float};

/// The plan as text.
pub(crate) fn plan_text(report: &EvacuationPlan) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for it in &report.destinations {
        let free = it.free_memory_bytes.map_or_else(String::new, |free| {
            format!(" of {} that are free", bytes(float(free)))
        });
        let _ = writeln!(
            text,
            "destination  {}: {} guests, {} of memory{free}; line {}",
            it.to,
            it.guests,
            bytes(float(it.memory_bytes)),
            span(it.line_bytes_per_second, rate_text)
        );
    }
    if !report.moves.is_empty() {
        text.push('\n');
        let mut rows = vec![[
            "guest".to_owned(),
            "memory".to_owned(),
            "to".to_owned(),
            "mode".to_owned(),
            "begins".to_owned(),
            "total".to_owned(),
            "downtime".to_owned(),
        ]];
        rows.extend(report.moves.iter().map(row));
        text.push_str(&columns(&rows));
        let _ = writeln!(
            text,
            "\n{} at a time; in all {}; the guests lose {} of their time together",
            report.at_once,
            span(report.total_ms, time),
            span(report.felt_ms, time)
        );
    }
    for it in &report.stays {
        let _ = writeln!(text, "stays        {}: {}", it.guest, it.reason);
    }
    if let Some(within) = &report.within {
        let _ = writeln!(
            text,
            "deadline     {}: {}",
            time(within.deadline_ms),
            match within.met {
                DeadlineMet::Yes => "met",
                DeadlineMet::Likely => "likely met",
                DeadlineMet::Unlikely => "likely not met",
                DeadlineMet::No => "not met",
            }
        );
        for it in &within.changes {
            let met = match it.met {
                DeadlineMet::Yes => "met",
                _ => "likely met",
            };
            let _ = writeln!(
                text,
                "             {met} with {}: {}",
                it.change,
                span(it.total_ms, time)
            );
        }
    }
    text
}

fn row(it: &PlannedMove) -> [String; 7] {
    [
        it.guest.clone(),
        bytes(float(it.memory_bytes)),
        it.to.clone(),
        it.mode.to_string(),
        it.begins_ms.likely.map_or_else(|| "never".to_owned(), time),
        span(it.total_ms, time),
        span(it.downtime_ms, time),
    ]
}

/// Rows with columns as wide as their widest entries.
pub(super) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// The likely value, and the others if they are printed differently.
pub(super) fn span(span: Predicted, print: impl Fn(f64) -> String) -> String {
    let print = |value: Option<f64>| value.map_or_else(|| "endless".to_owned(), &print);
    let (low, likely, high) = (print(span.low), print(span.likely), print(span.high));
    match low == high {
        true => likely,
        false => format!("{likely} ({low}-{high})"),
    }
}

/// Milliseconds, in a unit that fits.
pub(super) fn time(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else if ms < 100_000.0 {
        format!("{:.1} s", ms / 1e3)
    } else if ms < 6_000_000.0 {
        format!("{:.1} min", ms / 60e3)
    } else {
        format!("{:.1} h", ms / 3600e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::evacuate::is_whole;
    use hikkoshi_account::Mode;
    use hikkoshi_status::{
        MoveOrder, PlannedChange, PlannedDeadline, PlannedDestination, StayingGuest,
    };

    fn about(likely: f64) -> Predicted {
        Predicted {
            low: Some(likely * 0.9),
            likely: Some(likely),
            high: Some(likely * 1.5),
        }
    }

    #[test]
    fn a_plan_is_a_table_with_its_deadline() {
        let report = EvacuationPlan {
            moves: vec![PlannedMove {
                guest: "web1".to_owned(),
                to: "vmhost2:7000".to_owned(),
                mode: Mode::Precopy,
                memory_bytes: 4 << 30,
                begins_ms: about(0.0),
                ends_ms: about(20_000.0),
                total_ms: about(20_000.0),
                downtime_ms: about(12.0),
                felt_ms: about(40.0),
            }],
            stays: vec![StayingGuest {
                guest: "db".to_owned(),
                reason: "vmhost2:7000: it is not admitted".to_owned(),
            }],
            destinations: vec![PlannedDestination {
                to: "vmhost2:7000".to_owned(),
                guests: 1,
                memory_bytes: 4 << 30,
                free_memory_bytes: Some(8 << 30),
                line_bytes_per_second: about(117_440_512.0),
            }],
            at_once: 1,
            order: MoveOrder::Named,
            total_ms: about(20_000.0),
            felt_ms: about(40.0),
            within: Some(PlannedDeadline {
                deadline_ms: 15_000.0,
                met: DeadlineMet::No,
                changes: vec![PlannedChange {
                    change: "lines that are 2 times as fast".to_owned(),
                    total_ms: about(10_000.0),
                    met: DeadlineMet::Yes,
                }],
            }),
        };
        assert!(!is_whole(&report));
        assert_eq!(
            plan_text(&report),
            "destination  vmhost2:7000: 1 guests, 4.0 GiB of memory of 8.0 GiB that are free; line \
             112.0 MiB/s (100.8 MiB/s-168.0 MiB/s)\n\
             \n\
             guest  memory   to            mode     begins  total                 downtime\n\
             web1   4.0 GiB  vmhost2:7000  precopy  0 ms    20.0 s (18.0 s-30.0 s)  12 ms (11 ms-18 ms)\n\
             \n\
             1 at a time; in all 20.0 s (18.0 s-30.0 s); the guests lose 40 ms (36 ms-60 ms) of their \
             time together\n\
             stays        db: vmhost2:7000: it is not admitted\n\
             deadline     15.0 s: not met\n             \
             met with lines that are 2 times as fast: 10.0 s (9.0 s-15.0 s)\n"
                .replace("total                 down", "total                   down")
        );
    }
}
