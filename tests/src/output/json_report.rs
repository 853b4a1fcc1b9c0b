//! The JSON report that `--json` writes, as documented in docs/json.md.

use crate::{JsonSchema, free_huge_pages, log};
use hikkoshi_account::{Account, CollapseAccount, EngineInfo, Side, Statistics};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

/// The JSON report of one engine.
#[derive(Clone, Debug)]
pub struct JsonReport(pub Statistics);

impl Deref for JsonReport {
    type Target = Account;

    fn deref(&self) -> &Account {
        &self.0.account
    }
}

impl DerefMut for JsonReport {
    fn deref_mut(&mut self) -> &mut Account {
        &mut self.0.account
    }
}

/// Asserts that at least one huge page was rebuilt, unless the host has too few free blocks of
/// memory: `before` is their number before the migration.
///
/// # Panics
/// When none was.
pub fn assert_rebuilt(collapse: &CollapseAccount, before: u64) {
    /// Free blocks of 2 MiB that are needed, including what other tests may use meanwhile.
    const ENOUGH: u64 = 256;
    let free = before.min(free_huge_pages());
    if collapse.rebuilt == 0 && free < ENOUGH {
        return log(format!(
            "NOT TESTED: the host has {free} free blocks of memory for huge pages, less than \
             {ENOUGH}, and none was rebuilt"
        ));
    }
    assert!(collapse.rebuilt > 0, "{collapse:?}, {free} blocks free");
}

impl JsonReport {
    /// Parses a JSON report: one object in one line.
    ///
    /// # Panics
    /// When it is not valid.
    pub fn read(json: &str) -> Self {
        assert_eq!(json.trim_end().lines().count(), 1, "one object: {json}");
        let read = serde_json::from_str(json);
        Self(read.unwrap_or_else(|error| panic!("{error}: {json}")))
    }

    /// The report in the file that an engine was to write. `None`: it wrote none, or an error, or
    /// that the guest had moved before.
    ///
    /// # Panics
    /// When the file has something else.
    pub(crate) fn written_to(path: PathBuf) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let written = JsonSchema::published().assert("file", &text);
        let has_report = written["error"].is_null() && written["moved"].is_null();
        has_report.then(|| Self::read(&text))
    }

    /// Which engine it was.
    ///
    /// # Panics
    /// When the report does not say it.
    pub fn engine(&self) -> &EngineInfo {
        self.0.engine.as_ref().expect("the report says whose it is")
    }

    /// Checks the invariants of every report of that side for a guest with `mib` MiB of memory,
    /// moved by `mode`; a resumed migration has others.
    ///
    /// # Panics
    /// When a check fails.
    pub fn check(&self, side: Side, mode: &str, mib: u64) {
        let (pages, bytes, latency) = (&self.pages, &self.bytes, &self.requests.request_latency_us);
        assert_eq!(self.mode.name(), mode);
        // Video memory and firmware may be counted as well.
        assert!(pages.guest >= mib * 256, "{self:?}");
        let most = self.downtime_ms.expect("it was not resumed");
        assert!(
            self.total_ms > 0.0 && (0.0..=self.total_ms).contains(&most),
            "{self:?}"
        );
        if let Some(likely) = self.likely_downtime_ms {
            assert!(
                side == Side::Source && (0.0..=most).contains(&likely),
                "{self:?}"
            );
        }
        self.check_switchover(side);
        // What compression has saved is of either phase.
        let saved = self.compression.map_or(0, |all| all.all().saved_bytes());
        for (pages, bytes, saved) in [
            (pages.precopy, bytes.precopy, saved),
            (pages.urgent, bytes.urgent, 0),
            (pages.background, bytes.background, saved),
        ] {
            let all = bytes + saved;
            assert!(all >= pages * 4096, "content and headers: {self:?}");
        }
        if !self.postcopy {
            assert_eq!((pages.urgent, pages.background, latency.count), (0, 0, 0));
        }
        if mode == "postcopy" {
            assert_eq!((pages.precopy, bytes.precopy), (0, 0), "{self:?}");
        }
        self.check_engine(side);
        let sum: u64 = latency.histogram.iter().map(|bucket| bucket.count).sum();
        assert_eq!(sum, latency.count, "{self:?}");
        if latency.count > 0 {
            assert!(
                latency.p50 <= latency.p99 && latency.p99 <= latency.max && latency.mean > 0.0,
                "{self:?}"
            );
        }
        let stages = &self.requests.request_stages_us;
        for stage in [
            &stages.fault_to_request,
            &stages.request_to_page,
            &stages.page_to_installed,
        ] {
            assert_eq!(stage.count, latency.count, "{self:?}");
        }
        let faults: u64 = self.requests.faults.iter().map(|thread| thread.count).sum();
        assert!(faults >= latency.count, "{self:?}");
        let bounds: Vec<_> = latency.histogram.iter().map(|b| b.le_us).collect();
        assert!(
            bounds.iter().all(|b| b.is_power_of_two()) && bounds.is_sorted(),
            "{self:?}"
        );
    }
}

impl JsonReport {
    /// Which engine it was, and what it has counted of pages that were sent twice.
    fn check_engine(&self, side: Side) {
        let (pages, bytes) = (&self.pages, &self.bytes);
        let is_source = side == Side::Source;
        assert_eq!(self.engine().side, side, "{self:?}");
        assert_eq!(self.engine().migration_id.len(), 16, "{self:?}");
        assert_eq!(self.repeats.is_some(), is_source, "{self:?}");
        if let Some(repeats) = &self.repeats {
            let saved = self.compression.map_or(0, |all| all.all().saved_bytes());
            assert!(repeats.precopy.bytes <= bytes.precopy + saved, "{self:?}");
            let later = [
                repeats.stale,
                repeats.host_page,
                repeats.resent,
                repeats.requested,
            ];
            let later: u64 = later.iter().map(|repeated| repeated.bytes).sum();
            assert!(
                later <= (pages.urgent + pages.background) * 4096,
                "{self:?}"
            );
            assert!(
                self.rounds == 0 || !self.rounds_detail.is_empty(),
                "{self:?}"
            );
        }
    }
}

impl fmt::Display for JsonReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pages, latency) = (&self.pages, &self.requests.request_latency_us);
        write!(
            f,
            "{}: downtime {:.1} ms, total {:.2} s, rounds {}, pages {} pre-copied, {} background, \
             {} urgent, {} zero; {} requests, mean {:.0} µs, p99 {:.0} µs, max {:.0} µs",
            self.mode,
            self.downtime_ms.unwrap_or(f64::NAN),
            self.total_ms / 1e3,
            self.rounds,
            pages.precopy,
            pages.background,
            pages.urgent,
            pages.zero,
            latency.count,
            latency.mean,
            latency.p99,
            latency.max
        )
    }
}
