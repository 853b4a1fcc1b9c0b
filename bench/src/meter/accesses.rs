//! The guest's memory accesses between the switchover and its last page.

use std::time::{Duration, Instant};

use hikkoshi_lab::{ConsoleLine, GuestReport, Latency};
use serde::{Deserialize, Serialize};

use super::time::seconds_between;

/// Accesses of the guest in a span of time.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Accesses {
    /// Accesses that took at least [`crate::plan::SLOW_US`].
    pub slow: u64,
    /// Their mean, µs.
    pub slow_mean_us: f64,
    /// The longest, µs.
    pub max_us: f64,
    /// Half of the slow accesses took less than this power of two, µs.
    pub slow_p50_below_us: Option<u64>,
    /// 99 % of the slow accesses took less than this power of two, µs.
    pub slow_p99_below_us: Option<u64>,
    /// Accesses completed a second, from the report intervals that lie wholly between the
    /// switchover and the last page.
    pub per_second: Option<f64>,
    /// Accesses between the switchover and the last page: that rate times that time. (The first and
    /// the last interval also contain accesses from outside of it.)
    pub completed: Option<f64>,
    /// Counts by power of two: bucket 0 is below 1 µs, bucket k from 2^(k-1) to below 2^k µs.
    pub histogram: Vec<(u32, u64)>,
}

/// Sums up the reports of `vm` after `from`, up to the first one after `until`.
///
/// The interval of the first report began before `from`. Its slow accesses count, because the first
/// faults are among them. Its other accesses are not used for the rate.
pub(crate) fn accesses_between(
    lines: &[ConsoleLine],
    vm: &str,
    from: Instant,
    until: Instant,
) -> Option<Accesses> {
    let mut sum = Latency::default();
    let (mut inside, mut inside_ms) = (0, 0);
    let mut first = true;
    for line in lines {
        let GuestReport::Dirty(dirty) = &line.report else {
            continue;
        };
        if *line.vm != *vm || line.at < from {
            continue;
        }
        sum.add(&dirty.latency);
        if line.at > until {
            break;
        }
        if !first {
            inside += dirty.latency.accesses;
            inside_ms += dirty.span_ms;
        }
        first = false;
    }
    let span = until.saturating_duration_since(from);
    (sum.accesses > 0).then(|| accesses(&sum, inside, inside_ms, span))
}

/// The access rate over time, on whichever host the guest runs: one point per report, at its end,
/// in seconds from `zero`.
#[allow(clippy::cast_precision_loss)] // counts far below 2^52
pub(crate) fn access_rates(lines: &[ConsoleLine], zero: Instant) -> Vec<(f64, f64)> {
    lines
        .iter()
        .filter_map(|line| match &line.report {
            GuestReport::Dirty(dirty) if dirty.span_ms > 0 => {
                let rate = dirty.latency.accesses as f64 * 1000.0 / dirty.span_ms as f64;
                Some((seconds_between(zero, line.at), rate))
            }
            _ => None,
        })
        .collect()
}

#[allow(clippy::cast_precision_loss)] // counts far below 2^52
fn accesses(sum: &Latency, inside: u64, inside_ms: u64, span: Duration) -> Accesses {
    let per_second = (inside_ms > 0).then(|| inside as f64 * 1000.0 / inside_ms as f64);
    // The bucket that contains the threshold holds both slow and other accesses; those above it
    // only slow ones.
    let threshold = u64::BITS - crate::plan::SLOW_US.leading_zeros();
    let above: u64 = (sum.histogram.buckets())
        .filter(|&(bucket, _)| bucket > threshold)
        .map(|(_, count)| count)
        .sum();
    let part = |part: f64| {
        let mut seen = sum.slow.saturating_sub(above) as f64;
        if sum.slow == 0 {
            return None;
        }
        let wanted = part * sum.slow as f64;
        if seen >= wanted {
            return Some(1 << threshold);
        }
        sum.histogram
            .buckets()
            .filter(|&(bucket, _)| bucket > threshold)
            .find_map(|(bucket, count)| {
                seen += count as f64;
                (seen >= wanted).then(|| 1 << bucket.min(63))
            })
    };
    Accesses {
        slow: sum.slow,
        slow_mean_us: sum.slow_mean_us,
        max_us: sum.max_us,
        slow_p50_below_us: part(0.5),
        slow_p99_below_us: part(0.99),
        per_second,
        completed: per_second.map(|rate| rate * span.as_secs_f64()),
        histogram: sum.histogram.buckets().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(vm: &str, at: Instant, accesses: u64, slow: u64, hist: &str) -> ConsoleLine {
        let text = format!(
            "dirty: ok t=1.0 span_ms=100 accesses={accesses} slow={slow} mean_us=1.0 max_us=900.0 \
             slow_mean_us=300.0 slow_max_us=900.0 hist={hist}"
        );
        ConsoleLine {
            at,
            vm: vm.into(),
            report: GuestReport::parse(&text),
            text,
        }
    }

    #[test]
    fn only_reports_within_the_window_count() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let lines = [
            line("source", at(0), 100_000, 5, "0:99995,9:5"),
            line("destination", at(110), 50_000, 10, "0:49990,9:10"),
            line("destination", at(210), 100, 90, "0:10,9:80,10:10"),
            line("destination", at(310), 300, 90, "0:210,9:90"),
            line("destination", at(410), 70_000, 1, "0:69999,9:1"),
            line("destination", at(510), 70_000, 7, "0:69993,9:7"),
        ];
        let seen = accesses_between(&lines, "destination", at(50), at(350)).unwrap();
        assert_eq!(seen.slow, 191, "the interval that contains the end counts");
        assert!((seen.slow_mean_us - 300.0).abs() < 1e-6);
        assert_eq!(
            seen.per_second,
            Some(2000.0),
            "two whole intervals of 100 ms"
        );
        assert_eq!(seen.completed, Some(600.0), "in 300 ms");
        assert_eq!(access_rates(&lines, at(110))[1], (0.0, 500_000.0));
        assert_eq!(seen.slow_p50_below_us, Some(512));
        assert_eq!(seen.slow_p99_below_us, Some(1024));
        assert_eq!(accesses_between(&lines, "nobody", at(0), at(350)), None);
    }
}
