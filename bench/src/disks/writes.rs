//! The guest's writes to its disk, as the source's QEMU has counted them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::meter::seconds_between;

/// The time between two samples. Asking libvirt costs 20 ms of a processor.
const EVERY: Duration = Duration::from_millis(500);

/// The counters of the guest's disk at one time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Sample {
    at: Instant,
    /// Writes that were completed.
    writes: u64,
    /// The time that they took together, ns.
    ns: u64,
}

impl Sample {
    /// From the answer to `query-blockstats`: of all disks together.
    pub(super) fn of_qmp(at: Instant, stats: &Value) -> Option<Self> {
        let rows = stats.as_array()?;
        let sum = |key: &str| {
            rows.iter()
                .filter_map(|row| row["stats"][key].as_u64())
                .sum()
        };
        Some(Self {
            at,
            writes: sum("wr_operations"),
            ns: sum("wr_total_time_ns"),
        })
    }

    /// From what `virsh domblkstat DOMAIN DISK` prints.
    pub(super) fn of_virsh(at: Instant, printed: &str) -> Option<Self> {
        let number = |name: &str| {
            let mut lines = printed.lines().map(str::split_whitespace);
            let mut words = lines.find_map(|mut words| {
                words.next()?;
                (words.next()? == name).then_some(words)
            })?;
            words.next()?.parse().ok()
        };
        Some(Self {
            at,
            writes: number("wr_req")?,
            ns: number("wr_total_times")?,
        })
    }
}

/// Writes between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Writes {
    /// How many were completed a second.
    pub per_second: f64,
    /// How long one took on average, ms.
    pub mean_ms: f64,
    /// The highest such average between two samples, ms.
    pub highest_mean_ms: f64,
}

impl Writes {
    /// Those between two times, by the samples in between. `None`: there are too few.
    pub(super) fn between(samples: &[Sample], from: Instant, until: Instant) -> Option<Self> {
        let within: Vec<_> = samples
            .iter()
            .filter(|sample| (from..=until).contains(&sample.at))
            .collect();
        let (first, last) = (within.first()?, within.last()?);
        let seconds = seconds_between(first.at, last.at);
        let means = within.windows(2).filter_map(|pair| match pair {
            [before, after] => mean_ms(before, after),
            _ => None,
        });
        Some(Self {
            per_second: float(last.writes.checked_sub(first.writes)?) / seconds,
            mean_ms: mean_ms(first, last)?,
            highest_mean_ms: means.fold(0.0, f64::max),
        })
    }
}

fn mean_ms(before: &Sample, after: &Sample) -> Option<f64> {
    let writes = after.writes.checked_sub(before.writes)?;
    let ns = after.ns.checked_sub(before.ns)?;
    (writes > 0).then(|| float(ns) / float(writes) / 1e6)
}

/// Takes samples until it is stopped, or there are none any more.
pub(super) fn record(stop: &AtomicBool, mut sample: impl FnMut() -> Option<Sample>) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + EVERY;
        match sample() {
            Some(sample) => samples.push(sample),
            None => break,
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    samples
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_programs_have_the_same_counters() {
        let at = Instant::now();
        let stats = json!([
            { "device": "a", "stats": { "wr_operations": 3, "wr_total_time_ns": 5000 } },
            { "device": "b", "stats": { "wr_operations": 4, "wr_total_time_ns": 0 } },
        ]);
        let printed = "vda rd_req 9\nvda wr_req 7\nvda wr_bytes 1\nvda wr_total_times 5000\n";
        let sample = Sample {
            at,
            writes: 7,
            ns: 5000,
        };
        assert_eq!(Sample::of_qmp(at, &stats), Some(sample));
        assert_eq!(Sample::of_virsh(at, printed), Some(sample));
        assert_eq!(Sample::of_virsh(at, "error: no domain"), None);
    }

    #[test]
    fn writes_are_those_of_the_samples_in_between() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let sample = |ms, writes, us: u64| Sample {
            at: at(ms),
            writes,
            ns: us * 1000,
        };
        let samples = [
            sample(0, 0, 0),
            sample(500, 50, 50_000),
            sample(1000, 100, 250_000),
            sample(1500, 110, 260_000),
        ];
        let all = Writes::between(&samples, at(0), at(1000)).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(all.per_second, 100.0);
        close(all.mean_ms, 2.5);
        close(all.highest_mean_ms, 4.0);
        assert_eq!(Writes::between(&samples, at(1400), at(1600)), None);
        assert_eq!(Writes::between(&[], at(0), at(1)), None);
    }
}
