//! The account that `--json` writes, as the contract has it.

use crate::{free_huge_pages, log};
use serde::Deserialize;
use std::fmt;

/// What a migration cost.
#[derive(Clone, Debug, Deserialize)]
pub struct JsonReport {
    /// `precopy`, `postcopy` or `hybrid`.
    pub mode: String,
    /// From beginning to end, ms.
    pub total_ms: f64,
    /// How long nobody ran, ms.
    pub downtime_ms: f64,
    /// Pre-copy rounds.
    pub rounds: u32,
    /// Whether pages followed the guest.
    pub postcopy: bool,
    /// By kind.
    pub pages: Pages,
    /// By kind.
    pub bytes: Bytes,
    /// From fault to page.
    pub request_latency_us: Latency,
    /// The parts of it.
    pub request_stages_us: Stages,
    /// Requests whose times could not be noted.
    pub unmeasured_requests: u64,
    /// Who waited for pages.
    pub faults: Vec<ThreadFaults>,
    /// What became of huge pages, where they were to be rebuilt.
    pub collapse: Option<Collapse>,
    /// Requests for what was on its way already; the source's account of post-copy.
    pub requests_under_way: Option<u64>,
    /// Who waited for pages before the guest ran; the destination's account of post-copy.
    pub faults_before_running: Option<Vec<ThreadFaults>>,
}

/// The parts of a request's time.
#[derive(Clone, Debug, Deserialize)]
pub struct Stages {
    /// Until it is asked for.
    pub fault_to_request: Latency,
    /// Until it is here.
    pub request_to_page: Latency,
    /// Until the guest has it.
    pub page_to_installed: Latency,
}

/// The faults of one thread.
#[derive(Clone, Debug, Deserialize)]
pub struct ThreadFaults {
    /// Its name.
    pub thread: String,
    /// Which virtual processor it is.
    pub vcpu: Option<u32>,
    /// How many.
    pub count: u64,
}

/// Transparent huge pages that were to be rebuilt.
#[derive(Clone, Debug, Deserialize)]
pub struct Collapse {
    /// Places that hold data.
    pub tried: u64,
    /// Those that are huge pages now.
    pub rebuilt: u64,
}

impl Collapse {
    /// Asserts that something was rebuilt, of a host that had so many free pieces before it and has
    /// some now. One that has too few for the guests beside it, too, cannot show it.
    ///
    /// # Panics
    /// When nothing was.
    pub fn assert_rebuilt(&self, before: u64) {
        /// Of 2 MiB; what other tests may take meanwhile.
        const ENOUGH: u64 = 256;
        let free = before.min(free_huge_pages());
        if self.rebuilt == 0 && free < ENOUGH {
            return log(format!(
                "NOT TESTED: the host has {free} free pieces of memory for huge pages, less than \
                 {ENOUGH}, and none was rebuilt"
            ));
        }
        assert!(self.rebuilt > 0, "{self:?}, {free} pieces free");
    }
}

/// Pages by kind.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Pages {
    /// With their content, before the switch.
    pub precopy: u64,
    /// As a mark.
    pub zero: u64,
    /// Asked for.
    pub urgent: u64,
    /// After the switch, not asked for.
    pub background: u64,
    /// In the guest.
    pub guest: u64,
}

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Bytes {
    /// Before the switch.
    pub precopy: u64,
    /// Asked for.
    pub urgent: u64,
    /// After the switch, not asked for.
    pub background: u64,
    /// Device state.
    pub device_state: u64,
}

/// Times in µs.
#[derive(Clone, Debug, Deserialize)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// By powers of two.
    pub histogram: Vec<Bucket>,
}

/// One bar of a histogram.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Bucket {
    /// Upper bound, µs.
    pub le_us: u64,
    /// How many.
    pub count: u64,
}

impl JsonReport {
    /// Reads what `--json` wrote: one object, one line.
    ///
    /// # Panics
    /// When it is not that.
    pub fn read(json: &str) -> Self {
        assert_eq!(json.trim_end().lines().count(), 1, "one object: {json}");
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    /// Checks what must be so in every account of a guest with `mib` MiB of memory moved by
    /// `mode`.
    ///
    /// # Panics
    /// When it is not so.
    pub fn check(&self, mode: &str, mib: u64) {
        let (pages, bytes, latency) = (&self.pages, &self.bytes, &self.request_latency_us);
        assert_eq!(self.mode, mode);
        assert_eq!(pages.guest, mib * 256, "{self:?}");
        assert!(
            self.total_ms > 0.0 && (0.0..=self.total_ms).contains(&self.downtime_ms),
            "{self:?}"
        );
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

impl fmt::Display for JsonReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pages, latency) = (&self.pages, &self.request_latency_us);
        write!(
            f,
            "{}: downtime {:.1} ms, total {:.2} s, rounds {}, pages {} pre-copied, {} background, \
             {} urgent, {} zero; {} requests, mean {:.0} µs, p99 {:.0} µs, max {:.0} µs",
            self.mode,
            self.downtime_ms,
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
