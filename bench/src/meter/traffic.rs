//! Network traffic over time.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_lab::{LabError, Namespace};

use super::time::seconds_between;

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(20);
/// The counters of the reading thread's network namespace.
const COUNTERS: &str = "/proc/thread-self/net/dev";

/// Bytes that a device has sent, with the time of each sample.
pub(crate) type Sent = Vec<(Instant, u64)>;

/// Samples the bytes sent by `device` of `host` until `stop` is set.
///
/// # Errors
/// When the namespace cannot be entered.
pub(crate) fn record_traffic(
    host: &Namespace,
    device: &str,
    stop: &AtomicBool,
) -> Result<Sent, LabError> {
    host.run(|| {
        let mut sent = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let text = fs::read_to_string(COUNTERS).unwrap_or_default();
            if let Some(bytes) = sent_by(device, &text) {
                sent.push((Instant::now(), bytes));
            }
            std::thread::sleep(EVERY);
        }
        sent
    })
}

/// The ninth number after a device's name (`net/core/net-procfs.c`): bytes sent.
fn sent_by(device: &str, text: &str) -> Option<u64> {
    let (_, numbers) = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == device)?;
    numbers.split_whitespace().nth(8)?.parse().ok()
}

/// Bytes a second from `from` to `until`, without the first and the last tenth of the bytes: those
/// contain the start and the end of a connection.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub(crate) fn throughput(sent: &[(Instant, u64)], from: Instant, until: Instant) -> Option<f64> {
    let inside: Vec<_> = sent
        .iter()
        .filter(|(at, _)| (from..=until).contains(at))
        .collect();
    let (first, last) = (inside.first()?.1, inside.last()?.1);
    let tenth = last.saturating_sub(first) / 10;
    let mut middle = inside
        .iter()
        .filter(|(_, bytes)| (first + tenth..=last - tenth).contains(bytes));
    let begin = middle.next()?;
    let end = middle.next_back()?;
    let seconds = (end.0 - begin.0).as_secs_f64();
    (seconds > 0.0).then(|| (end.1 - begin.1) as f64 / seconds)
}

/// Bytes a second over time, in seconds from `zero`, averaged over `step`.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub(crate) fn traffic_rates(
    sent: &[(Instant, u64)],
    zero: Instant,
    step: Duration,
) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let Some(&(mut at, mut bytes)) = sent.first() else {
        return points;
    };
    for &(next, now) in sent {
        let span = next - at;
        if span >= step {
            let time = seconds_between(zero, at) + span.as_secs_f64() / 2.0;
            points.push((time, (now - bytes) as f64 / span.as_secs_f64()));
            (at, bytes) = (next, now);
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_parsed() {
        let text = "Inter-|   Receive                |  Transmit\n face |bytes    packets errs\n    lo:     0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0\n  line: 1258 12 0 0 0 0 0 0 99001 13 0 0 0 0 0 0\n";
        assert_eq!(sent_by("line", text), Some(99001));
        assert_eq!(sent_by("lo", text), Some(17));
        assert_eq!(sent_by("eth0", text), None);
    }

    #[test]
    fn throughput_is_measured_in_the_middle() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        // 1,000 bytes a millisecond, and no traffic before and after.
        let mut sent: Vec<_> = (0..20).map(|n| (at(n), 0)).collect();
        sent.extend((0..=1000).map(|n| (at(20 + n), n * 1000)));
        sent.extend((0..200).map(|n| (at(1021 + n), 1_000_000)));
        let rate = throughput(&sent, at(0), at(2000)).unwrap();
        assert!((rate - 1e6).abs() < 1.0, "{rate}");
        assert_eq!(throughput(&sent, at(5000), at(6000)), None);
        let points = traffic_rates(&sent, at(20), Duration::from_millis(100));
        assert!(
            points[2].0 > 0.0 && (points[2].1 - 1e6).abs() < 1.0,
            "{points:?}"
        );
        assert!(seconds_between(at(20), at(0)) < 0.0);
    }
}
