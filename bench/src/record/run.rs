//! One run of a case: what was measured.

use hikkoshi_lab::Slow;
use serde::Serialize;
use serde_json::Value;

use super::outcomes::{ScanOutcome, WebOutcome};
use crate::meter::{Accesses, DiskOutcome};
use crate::mover::MoveOutcome;
use crate::plan::Case;

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// `LINE/WORKLOAD/SYSTEM[/VARIANT]`.
    pub label: String,
    /// What was measured.
    pub case: Case,
    /// From 0 on.
    pub round: u32,
    /// Why there are no numbers.
    pub failure: Option<String>,
    /// Pre-copy did not converge within the time given, and was called off.
    pub called_off: bool,
    /// From the source's `STOP` to the destination's `RESUME`, ms.
    pub downtime_ms: Option<f64>,
    /// The system's own figure of it, ms.
    pub own_downtime_ms: Option<f64>,
    /// From the command to the last page received, ms.
    pub total_ms: Option<f64>,
    /// On the line, both directions, with all headers.
    pub bytes: Option<u64>,
    /// Rounds of pre-copy, as the system counts them.
    pub rounds: Option<u64>,
    /// The guest's accesses from the switch to the last page.
    pub accesses: Option<Accesses>,
    /// The guest's accesses a second before the move.
    pub accesses_per_second_before: Option<f64>,
    /// Processors that others kept busy meanwhile.
    pub others_cores: f64,
    /// Processor time of both QEMUs and hikkoshi from the command to the last page, s.
    pub cpu_seconds: f64,
    /// The slow accesses of post-copy, finely.
    pub slow: Option<SlowAccesses>,
    /// Bytes a second on the line: from the switch to the last page, or, in pre-copy, until the
    /// switch.
    pub throughput: Option<f64>,
    /// The scan.
    pub scan: Option<ScanOutcome>,
    /// The disk.
    pub disk: Option<DiskOutcome>,
    /// The clients of the web server.
    pub web: Option<WebOutcome>,
    /// What it looked like over time.
    pub series: Series,
    /// The system's own account.
    pub account: Value,
}

/// Over time, in seconds from the switch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// When the last page was there.
    pub ended: f64,
    /// Accesses of the guest a second.
    pub accesses: Vec<(f64, f64)>,
    /// Bytes on the line a second, from the source.
    pub bytes: Vec<(f64, f64)>,
}

/// Accesses that were slow between the switch and the end, as the guest counted them.
#[derive(Clone, Debug, Serialize)]
pub struct SlowAccesses {
    /// How many.
    pub count: u64,
    /// Their mean, µs.
    pub mean_us: f64,
    /// Half took less, to an eighth.
    pub p50_us: Option<f64>,
    /// 99 in 100 took less, to an eighth.
    pub p99_us: Option<f64>,
    /// So many below so many µs, and not below the bound before.
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
    /// Nothing measured yet.
    pub fn new(case: &Case, round: u32) -> Self {
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
            disk: None,
            web: None,
            series: Series::default(),
            account: Value::Null,
        }
    }

    /// Notes how the move went.
    pub fn take(&mut self, moved: &MoveOutcome) {
        self.called_off = moved.called_off;
        self.own_downtime_ms = moved.own_downtime_ms;
        self.total_ms = Some((moved.ended - moved.started).as_secs_f64() * 1e3);
        self.rounds = moved.rounds;
        self.account = moved.account.clone();
    }
}
