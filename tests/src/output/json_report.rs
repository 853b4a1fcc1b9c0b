//! The JSON report that `--json` writes, as documented in docs/json.md.

use crate::output::switchover_steps::SwitchoverStep;
use crate::{Side, free_huge_pages, log};
use hikkoshi_status::{DiskCopy, Outage, Repeats, Round};
use serde::Deserialize;
use std::fmt;

/// The JSON report of one engine.
#[derive(Clone, Debug, Deserialize)]
pub struct JsonReport {
    /// `precopy`, `postcopy` or `hybrid`.
    pub mode: String,
    /// The guest's state at the destination: `running`, `paused` or `shut_down`.
    pub guest_state: String,
    /// From start to end, ms.
    pub total_ms: f64,
    /// How long the guest did not run, ms; `None` after a resumed migration that cannot know it.
    pub downtime_ms: Option<f64>,
    /// How long it likely did not run, ms; in the source's report, if the destination tells.
    pub likely_downtime_ms: Option<f64>,
    /// The steps of the switchover on this side.
    pub switchover: Vec<SwitchoverStep>,
    /// Pre-copy rounds.
    pub rounds: u32,
    /// Whether pages were sent after the switchover.
    pub postcopy: bool,
    /// Pages by kind.
    pub pages: Pages,
    /// Bytes by kind.
    pub bytes: Bytes,
    /// Pages that were sent more than once; in the source's report.
    pub repeats: Option<Repeats>,
    /// The rounds of pre-copy; in the source's report.
    #[serde(default)]
    pub rounds_detail: Vec<Round>,
    /// Times without links after the handover.
    #[serde(default)] // programs before 2026-11-26 do not have this, nor the two below
    pub outages: Vec<Outage>,
    /// The disks that were copied; in the source's report.
    #[serde(default)]
    pub disks: Vec<DiskCopy>,
    /// Bytes for disks.
    pub disk_bytes: Option<u64>,
    /// The number of the migration, the same on both sides.
    #[serde(default)]
    pub migration_id: String,
    /// `source` or `destination`.
    #[serde(default)]
    pub side: String,
    /// Latency of page requests.
    pub request_latency_us: Latency,
    /// The stages of that latency.
    pub request_stages_us: Stages,
    /// Requests whose times were not recorded.
    pub unmeasured_requests: u64,
    /// Faults by thread.
    pub faults: Vec<ThreadFaults>,
    /// Frames that arrived for the guest during the switchover, if they were kept.
    pub frames: Option<Frames>,
    /// Results of rebuilding huge pages, if requested.
    pub collapse: Option<Collapse>,
    /// Bytes of the guest's memory that end with the source's QEMU; in the source's report of a
    /// migration that may use post-copy.
    pub source_private_bytes: Option<u64>,
    /// Whether the guest uses asynchronous page faults; in the source's report.
    pub asynchronous_faults: Option<String>,
    /// What the destination has not done besides.
    pub left_to_do: Option<String>,
    /// Pages that were dirty again when they were sent; in the source's report with `--log-ranges`.
    pub stale_pages: Option<u64>,
    /// Requests for pages that were already in flight; in the source's report of post-copy.
    pub requests_under_way: Option<u64>,
    /// Faults before the guest ran; in the destination's report of post-copy.
    pub faults_before_running: Option<Vec<ThreadFaults>>,
}

/// The stages of a request's latency.
#[derive(Clone, Debug, Deserialize)]
pub struct Stages {
    /// From the fault to the request.
    pub fault_to_request: Latency,
    /// From the request to the page.
    pub request_to_page: Latency,
    /// From the page to its installation.
    pub page_to_installed: Latency,
}

/// The faults of one thread.
#[derive(Clone, Debug, Deserialize)]
pub struct ThreadFaults {
    /// The thread's name.
    pub thread: String,
    /// `vcpu`, `asynchronous` or `other`.
    pub kind: String,
    /// The number of the virtual processor, if the thread is one.
    pub vcpu: Option<u32>,
    /// Number of faults.
    pub count: u64,
}

/// Frames that arrived for the guest during the switchover.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Frames {
    /// Sent to the destination.
    pub kept: u64,
    /// Delivered there.
    pub delivered: u64,
    /// Lost.
    pub dropped: u64,
}

/// Transparent huge pages to rebuild.
#[derive(Clone, Debug, Deserialize)]
pub struct Collapse {
    /// Ranges that hold data.
    pub tried: u64,
    /// Ranges that are huge pages now.
    pub rebuilt: u64,
}

impl Collapse {
    /// Asserts that at least one huge page was rebuilt, unless the host has too few free blocks of
    /// memory: `before` is their number before the migration.
    ///
    /// # Panics
    /// When none was.
    pub fn assert_rebuilt(&self, before: u64) {
        /// Free blocks of 2 MiB that are needed, including what other tests may use meanwhile.
        const ENOUGH: u64 = 256;
        let free = before.min(free_huge_pages());
        if self.rebuilt == 0 && free < ENOUGH {
            return log(format!(
                "NOT TESTED: the host has {free} free blocks of memory for huge pages, less than \
                 {ENOUGH}, and none was rebuilt"
            ));
        }
        assert!(self.rebuilt > 0, "{self:?}, {free} blocks free");
    }
}

/// Pages by kind.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Pages {
    /// Sent with content before the switchover.
    pub precopy: u64,
    /// Sent as zero marks.
    pub zero: u64,
    /// Sent on request.
    pub urgent: u64,
    /// Sent after the switchover without a request.
    pub background: u64,
    /// All pages of the guest.
    pub guest: u64,
}

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Bytes {
    /// Before the switchover.
    pub precopy: u64,
    /// Sent on request.
    pub urgent: u64,
    /// Sent after the switchover without a request.
    pub background: u64,
    /// Device state.
    pub device_state: u64,
}

/// Times in µs.
#[derive(Clone, Debug, Deserialize)]
pub struct Latency {
    /// Number of requests.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// Counts by powers of two.
    pub histogram: Vec<Bucket>,
}

/// One bucket of a histogram.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Bucket {
    /// Upper bound, µs.
    pub le_us: u64,
    /// Number of requests.
    pub count: u64,
}

impl JsonReport {
    /// Parses a JSON report: one object in one line.
    ///
    /// # Panics
    /// When it is not valid.
    pub fn read(json: &str) -> Self {
        assert_eq!(json.trim_end().lines().count(), 1, "one object: {json}");
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    /// Checks the invariants of every report of that side for a guest with `mib` MiB of memory,
    /// moved by `mode`; a resumed migration has others.
    ///
    /// # Panics
    /// When a check fails.
    pub fn check(&self, side: Side, mode: &str, mib: u64) {
        let (pages, bytes, latency) = (&self.pages, &self.bytes, &self.request_latency_us);
        assert_eq!(self.mode, mode);
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
        for (pages, bytes) in [
            (pages.precopy, bytes.precopy),
            (pages.urgent, bytes.urgent),
            (pages.background, bytes.background),
        ] {
            assert!(bytes >= pages * 4096, "content and headers: {self:?}");
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
        let stages = &self.request_stages_us;
        for stage in [
            &stages.fault_to_request,
            &stages.request_to_page,
            &stages.page_to_installed,
        ] {
            assert_eq!(stage.count, latency.count, "{self:?}");
        }
        let faults: u64 = self.faults.iter().map(|thread| thread.count).sum();
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
        let name = if is_source { "source" } else { "destination" };
        assert_eq!(self.side, name, "{self:?}");
        assert_eq!(self.migration_id.len(), 16, "{self:?}");
        assert_eq!(self.repeats.is_some(), is_source, "{self:?}");
        if let Some(repeats) = &self.repeats {
            assert!(repeats.precopy.bytes <= bytes.precopy, "{self:?}");
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
        let (pages, latency) = (&self.pages, &self.request_latency_us);
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
