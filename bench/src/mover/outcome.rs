//! The result of a migration, as reported by the system that performed it.

use std::time::Instant;

use hikkoshi_account::{Account, Statistics, SwitchoverStep, TimeLeft};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The result of a migration, as reported by the system that performed it.
#[derive(Debug)]
pub(crate) struct MoveOutcome {
    /// When the command was given.
    pub started: Instant,
    /// When all pages were received.
    pub ended: Instant,
    /// Whether pre-copy did not converge in time and was cancelled.
    pub called_off: bool,
    /// The system's own downtime figure, ms.
    pub own_downtime_ms: Option<f64>,
    /// Rounds of pre-copy.
    pub rounds: Option<u64>,
    /// The system's own report.
    pub report: OwnReport,
}

/// What the system that has performed a migration says of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum OwnReport {
    /// Hikkoshi.
    Hikkoshi(Box<HikkoshiReport>),
    /// QEMU, or libvirt. Null: nothing.
    Other(Value),
}

/// What hikkoshi says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HikkoshiReport {
    /// What `migrate --json` has written.
    #[serde(flatten)]
    pub statistics: Statistics,
    /// The destination's steps of the switchover, beside the source's.
    pub switchover_at_destination: Vec<SwitchoverStep>,
    /// What was reported of the time left.
    pub time_left: Vec<ReportedTimeLeft>,
    /// The most memory that `migrate` and `receive` have used, MiB (`VmHWM`).
    #[serde(default)]
    pub memory_mib: [f64; 2],
}

/// What was reported of the time left at one time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ReportedTimeLeft {
    /// When, in seconds from the start.
    pub at_s: f64,
    /// The estimate, if there was one.
    pub left: Option<TimeLeft>,
}

impl OwnReport {
    /// Nothing.
    pub(crate) const NONE: Self = Self::Other(Value::Null);

    /// What hikkoshi says.
    pub(crate) fn hikkoshi(&self) -> Option<&HikkoshiReport> {
        match self {
            Self::Hikkoshi(report) => Some(report),
            Self::Other(_) => None,
        }
    }

    /// Hikkoshi's account.
    pub(crate) fn account(&self) -> Option<&Account> {
        self.hikkoshi().map(|report| &report.statistics.account)
    }
}
