//! How a migration went, as the system that did it reports.

use std::time::Instant;

use serde_json::Value;

/// How a move went, as the one who moved it knows.
#[derive(Debug)]
pub struct MoveOutcome {
    /// The command.
    pub started: Instant,
    /// Everything is received.
    pub ended: Instant,
    /// Pre-copy did not converge in time.
    pub called_off: bool,
    /// The system's own figure.
    pub own_downtime_ms: Option<f64>,
    /// Rounds of pre-copy.
    pub rounds: Option<u64>,
    /// The system's own account.
    pub account: Value,
}
