//! The result of `hikkoshi estimate` as text.

use std::fmt::Write as _;

use hikkoshi_account::Predicted;
use hikkoshi_account::rate_text;

use super::report::{EstimateReport, ModeReport};
use crate::output::units::{bytes, float};

/// Working sets that are printed, by their windows in milliseconds; the JSON has all.
const SHOWN: [f64; 3] = [100.0, 1000.0, 10_000.0];

/// The result as text.
pub(crate) fn readable(report: &EstimateReport<'_>) -> String {
    let mut text = String::new();
    let guest = &report.guest;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "guest        {} of memory, {} of it with content; {} vCPUs",
        bytes(float(guest.bytes)),
        span(guest.content_bytes, bytes),
        guest.vcpus
    );
    let sets: Vec<_> = guest
        .working_sets
        .iter()
        .filter(|set| {
            SHOWN
                .iter()
                .any(|shown| (set.window_ms / shown - 1.0).abs() < 0.2)
        })
        .map(|set| format!("{} in {}", bytes(set.pages * 4096.0), time(set.window_ms)))
        .collect();
    let _ = writeln!(
        text,
        "writes       {:.0} pages/s; different ones: {} (measured for {:.1} s, at {:.1} % of one vCPU)",
        guest.dirtied_pages_per_second,
        if sets.is_empty() {
            "-".to_owned()
        } else {
            sets.join(", ")
        },
        guest.measured_seconds,
        guest.vcpu_share * 100.0
    );
    if let Some(compression) = &guest.compression {
        let _ = writeln!(
            text,
            "compression  {}: to {:.0} % of the content",
            compression.method,
            compression.page_bytes / 40.96
        );
    }
    let line = &report.line;
    let how = match (line.probe_bytes, line.probe_ms) {
        (Some(sent), Some(ms)) => format!("measured with {} in {}", bytes(float(sent)), time(ms)),
        _ => "given".to_owned(),
    };
    let _ = writeln!(
        text,
        "line         {}, round trip {}; {how}",
        span(line.bytes_per_second, rate_text),
        span(line.round_trip_ms, time)
    );
    text.push_str(
        "\nmode      converges  rounds     downtime               total                  sent\n",
    );
    for mode in &report.modes {
        text.push_str(&row(mode));
    }
    text.push('\n');
    for mode in report.modes.iter().filter(|mode| mode.possible) {
        let _ = writeln!(text, "{:<9} {}", mode.mode, guest_loses(mode));
    }
    for mode in &report.modes {
        for obstacle in mode.obstacles {
            let _ = writeln!(text, "{:<9} not possible: {obstacle}", mode.mode);
        }
    }
    for note in report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = match &report.recommended {
        Some(choice) => writeln!(text, "recommended: {}: {}", choice.mode, choice.reason),
        None => writeln!(text, "recommended: none, because the guest cannot be moved"),
    };
    text
}

fn row(mode: &ModeReport<'_>) -> String {
    if !mode.possible {
        return format!("{:<9} not possible\n", mode.mode);
    }
    format!(
        "{:<9} {:<10} {:<10} {:<22} {:<22} {}\n",
        mode.mode,
        mode.converges,
        span(mode.rounds, |rounds| format!("{rounds:.0}")),
        span(mode.downtime_ms, time),
        span(mode.total_ms, time),
        span(mode.bytes, bytes)
    )
}

/// What the guest notices beside the downtime.
fn guest_loses(mode: &ModeReport<'_>) -> String {
    let lost = span(mode.slowdown, |part| format!("{:.1} %", part * 100.0));
    let postcopy = mode.postcopy_ms.likely.unwrap_or(0.0);
    if postcopy > 0.0 {
        format!(
            "the guest loses {lost} of its time; {} of post-copy with {} page faults",
            span(mode.postcopy_ms, time),
            span(mode.faults, |faults| format!("{faults:.0}"))
        )
    } else {
        format!("the guest loses {lost} of its time")
    }
}

/// The likely value, and the others if they are printed differently. Pre-copy that does not
/// converge has no end: nor have its rounds, its time, and what it sends.
fn span(span: Predicted, print: impl Fn(f64) -> String) -> String {
    let print = |value: Option<f64>| value.map_or_else(|| "endless".to_owned(), &print);
    let (low, likely, high) = (print(span.low), print(span.likely), print(span.high));
    if low == high {
        return likely;
    }
    format!("{likely} ({low}-{high})")
}

/// Milliseconds, in a unit that fits.
fn time(ms: f64) -> String {
    if ms < 1.0 {
        format!("{ms:.2} ms")
    } else if ms < 10.0 {
        format!("{ms:.1} ms")
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else if ms < 100_000.0 {
        format!("{:.1} s", ms / 1e3)
    } else {
        format!("{:.0} s", ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_bound_is_endless() {
        let of = |low, likely, high| span(Predicted { low, likely, high }, time);
        assert_eq!(of(None, None, None), "endless");
        assert_eq!(of(Some(2000.0), None, None), "endless (2.0 s-endless)");
        assert_eq!(of(Some(5.0), Some(5.0), Some(5.0)), "5.0 ms");
    }
}
