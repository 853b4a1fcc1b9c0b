//! The result of a migration, as reported by the system that performed it.

use std::time::Instant;

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
    /// The system's own report, as JSON.
    pub report: Value,
}
