//! The read rate of the guest's disk during the migration.

use std::time::Instant;

use hikkoshi_account::Account;
use hikkoshi_lab::{ConsoleLine, GuestReport};
use serde::{Deserialize, Serialize};

/// What is measured of a disk.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct DiskOutcome {
    /// Bytes read a second before the migration.
    pub before: Option<f64>,
    /// Bytes read a second from the command to the pause of the source.
    pub during: Option<f64>,
    /// The 99th percentile of the time that a read took, before the migration, ms.
    pub p99_before_ms: Option<f64>,
    /// The same from the command to the pause of the source.
    pub p99_during_ms: Option<f64>,
    /// Number of drains, as hikkoshi counts them.
    pub drains: Option<u64>,
    /// Total time of the drains, ms.
    pub drains_ms: Option<f64>,
    /// The longest drain, ms.
    pub longest_drain_ms: Option<f64>,
    /// Pages with wrong content at the destination.
    pub bad_pages: u64,
}

/// The drains in hikkoshi's account.
pub(crate) fn drains(account: Option<&Account>) -> DiskOutcome {
    let drains = account.and_then(|account| account.drains);
    DiskOutcome {
        drains: drains.map(|drains| drains.count),
        drains_ms: drains.map(|drains| drains.total_ms),
        longest_drain_ms: drains.map(|drains| drains.max_ms),
        ..DiskOutcome::default()
    }
}

/// Bytes a second that the guest read, from the reports of `vm` whose intervals lie wholly between
/// two instants.
#[allow(clippy::cast_precision_loss)] // far below 2^52
pub(crate) fn read_rate(
    lines: &[ConsoleLine],
    vm: &str,
    from: Instant,
    until: Instant,
) -> Option<f64> {
    let works = lines
        .iter()
        .filter(|line| *line.vm == *vm && (from..=until).contains(&line.at));
    // The first interval began before.
    let works = works
        .filter_map(|line| match &line.report {
            GuestReport::Disk(work) => Some(work),
            _ => None,
        })
        .skip(1);
    let (kib, ms) = works.fold((0, 0), |(kib, ms), work| {
        (kib + work.read_kib, ms + work.span_ms)
    });
    (ms > 0).then(|| kib as f64 * 1024.0 * 1000.0 / ms as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_whole_intervals_count() {
        let zero = Instant::now();
        let line = |vm: &str, ms: u64, kib: u64| {
            let text = format!(
                "disk: ok t=1.0 span_ms=100 bad=0 reads=1 writes=0 read_kib={kib} written_kib=0 \
                 files=0 passes=0"
            );
            ConsoleLine {
                at: zero + Duration::from_millis(ms),
                vm: vm.into(),
                report: GuestReport::parse(&text),
                text,
            }
        };
        let lines = [
            line("source", 100, 7000),
            line("source", 200, 9000),
            line("source", 300, 1000),
            line("source", 400, 3000),
            line("destination", 450, 100),
            line("source", 600, 8000),
        ];
        let at = |ms| zero + Duration::from_millis(ms);
        let rate = read_rate(&lines, "source", at(150), at(500)).unwrap();
        assert!((rate - 4000.0 * 1024.0 * 5.0).abs() < 1.0, "{rate}");
        assert_eq!(read_rate(&lines, "source", at(150), at(250)), None);
    }
}
