//! What is measured of scans and of the web server's clients.

use serde::Serialize;

use crate::meter::Span;

/// How a scan went.
#[derive(Clone, Debug, Serialize)]
pub struct ScanOutcome {
    /// From the order to the end, by the guest's clock, ms.
    pub ms: f64,
    /// Pages read, each checked to the byte.
    pub pages: u64,
    /// Of the time, how much the virtual processor ran: its thread's time on a processor.
    pub ran: f64,
    /// Pages read until seconds after the order.
    pub progress: Vec<(f64, f64)>,
}

impl ScanOutcome {
    /// Pages a second.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    pub fn pages_per_second(&self) -> f64 {
        self.pages as f64 * 1e3 / self.ms.max(1e-3)
    }
}

/// What the clients saw of a move.
#[derive(Clone, Debug, Serialize)]
pub struct WebOutcome {
    /// Before the command.
    pub before: Option<Span>,
    /// From the command until the guest ran at the destination: pre-copy and the switch.
    pub until_switch: Option<Span>,
    /// From there to the last page.
    pub until_end: Option<Span>,
    /// Afterwards.
    pub after: Option<Span>,
    /// When the guest stopped at the source, s after the command.
    pub stop_s: f64,
    /// When it ran at the destination, s after the command.
    pub resume_s: f64,
    /// When the last page was there, s after the command.
    pub end_s: f64,
    /// Requests: s after the command, and the answer's time in ms.
    pub answers: Vec<(f64, f64)>,
    /// Requests without an answer at the end.
    pub unanswered: usize,
}
