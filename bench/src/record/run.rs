//! One run of a case: what was measured.

use hikkoshi_lab::Slow;
use serde::{Deserialize, Serialize};

use super::outcomes::{ClientsOutcome, ScanOutcome, WebOutcome};
use super::timeline::FaultTimeline;
use crate::meter::{Accesses, DiskOutcome};
use crate::mover::{MoveOutcome, OwnReport};
use crate::plan::Case;

/// The results of one run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Run {
    /// `LINE/WORKLOAD/SYSTEM[/VARIANT]`.
    pub label: String,
    /// The case that was measured.
    pub case: Case,
    /// The round, from 0 on.
    pub round: u32,
    /// Why the run has no results.
    pub failure: Option<String>,
    /// Pre-copy did not converge within the time limit, and was cancelled.
    pub called_off: bool,
    /// From the source's `STOP` to the destination's `RESUME`, ms.
    pub downtime_ms: Option<f64>,
    /// The downtime that the system itself reports, ms.
    pub own_downtime_ms: Option<f64>,
    /// From the command to the last page received, ms.
    pub total_ms: Option<f64>,
    /// Bytes on the network, both directions, with all headers.
    pub bytes: Option<u64>,
    /// Rounds of pre-copy, as the system counts them.
    pub rounds: Option<u64>,
    /// The guest's accesses from the switchover to the last page.
    pub accesses: Option<Accesses>,
    /// The guest's accesses a second before the migration.
    pub accesses_per_second_before: Option<f64>,
    /// Processors that other processes used meanwhile.
    pub others_cores: f64,
    /// Processor time of both QEMUs and hikkoshi from the command to the last page, s.
    pub cpu_seconds: f64,
    /// The slow accesses of post-copy, with a fine histogram.
    pub slow: Option<SlowAccesses>,
    /// Bytes a second on the network: from the switchover to the last page, or, in pre-copy, until
    /// the switchover.
    pub throughput: Option<f64>,
    /// The result of the scan.
    pub scan: Option<ScanOutcome>,
    /// The timeline of a page fault.
    pub timeline: Option<FaultTimeline>,
    /// The results of the disk.
    pub disk: Option<DiskOutcome>,
    /// What two clients noticed.
    pub clients: Option<ClientsOutcome>,
    /// The results of the web server's clients.
    pub web: Option<WebOutcome>,
    /// Accesses and traffic over time.
    pub series: Series,
    /// The system's own report.
    #[serde(rename = "account")]
    pub report: OwnReport,
}

/// What a move has cost.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Cost {
    /// Processors that other processes used meanwhile.
    pub others_cores: f64,
    /// Processor time of the testbed's processes from the command to the last page, s.
    pub cpu_seconds: f64,
    /// Bytes on the network, both directions, with all headers.
    pub bytes: Option<u64>,
}

/// Values over time, in seconds from the switchover.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Series {
    /// When the last page was received.
    pub ended: f64,
    /// Accesses of the guest a second.
    pub accesses: Vec<(f64, f64)>,
    /// Bytes a second that the source sent.
    pub bytes: Vec<(f64, f64)>,
}

/// Slow accesses between the switchover and the end, as the guest counted them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SlowAccesses {
    /// How many.
    pub count: u64,
    /// Their mean, µs.
    pub mean_us: f64,
    /// Half took less, to an eighth.
    pub p50_us: Option<f64>,
    /// 99 % took less, to an eighth.
    pub p99_us: Option<f64>,
    /// Upper bound in µs, and count, of each bucket.
    pub histogram: Vec<(f64, u64)>,
}

impl From<Slow> for SlowAccesses {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn from(slow: Slow) -> Self {
        Self {
            count: slow.count,
            mean_us: slow.sum_us as f64 / slow.count.max(1) as f64,
            p50_us: slow.fine.below_us(0.5),
            p99_us: slow.fine.below_us(0.99),
            histogram: slow.fine.buckets().collect(),
        }
    }
}

impl Run {
    /// A run without results yet.
    pub(crate) fn new(case: &Case, round: u32) -> Self {
        Self {
            label: case.to_string(),
            case: *case,
            round,
            failure: None,
            called_off: false,
            downtime_ms: None,
            own_downtime_ms: None,
            total_ms: None,
            bytes: None,
            rounds: None,
            accesses: None,
            accesses_per_second_before: None,
            others_cores: 0.0,
            cpu_seconds: 0.0,
            slow: None,
            throughput: None,
            scan: None,
            timeline: None,
            disk: None,
            clients: None,
            web: None,
            series: Series::default(),
            report: OwnReport::NONE,
        }
    }

    /// Stores what it has cost.
    pub(crate) fn take_cost(&mut self, cost: &Cost) {
        self.others_cores = cost.others_cores;
        self.cpu_seconds = cost.cpu_seconds;
        self.bytes = cost.bytes;
    }

    /// Stores the outcome of the migration.
    pub(crate) fn take(&mut self, moved: &MoveOutcome) {
        self.called_off = moved.called_off;
        self.own_downtime_ms = moved.own_downtime_ms;
        self.total_ms = Some((moved.ended - moved.started).as_secs_f64() * 1e3);
        self.rounds = moved.rounds;
        self.report = moved.report.clone();
    }
}
