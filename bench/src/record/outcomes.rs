//! What is measured of a scan, and of a guest's clients.

use serde::{Deserialize, Serialize};

use crate::meter::{Gaps, GuestAccount, Span};

/// The result of a scan.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ScanOutcome {
    /// From the command to the end, by the guest's clock, ms.
    pub ms: f64,
    /// Pages read, every byte checked.
    pub pages: u64,
    /// The fraction of the time that the virtual processor's thread ran.
    pub ran: f64,
    /// Pages read until a number of seconds after the command.
    pub progress: Vec<(f64, f64)>,
    /// What the guest counted, if it is the nano guest.
    pub guest: Option<GuestAccount>,
}

impl ScanOutcome {
    /// Pages a second.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    pub(crate) fn pages_per_second(&self) -> f64 {
        self.pages as f64 * 1e3 / self.ms.max(1e-3)
    }
}

/// The clients' response times during a migration.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct WebOutcome {
    /// Before the migration.
    pub before: Option<Span>,
    /// From the command until the guest runs at the destination: pre-copy and switchover.
    pub until_switch: Option<Span>,
    /// From there to the last page.
    pub until_end: Option<Span>,
    /// After the migration.
    pub after: Option<Span>,
    /// When the guest was paused at the source, s after the command.
    pub stop_s: f64,
    /// When it ran at the destination, s after the command.
    pub resume_s: f64,
    /// When the last page was received, s after the command.
    pub end_s: f64,
    /// Requests: s after the command, and the response time in ms.
    pub answers: Vec<(f64, f64)>,
    /// Answers a second before the command.
    pub per_second_before: f64,
    /// Answers in the first second at the destination.
    pub per_second_first: f64,
    /// Answers a second over time: s after the command, and the rate.
    pub per_second: Vec<(f64, f64)>,
    /// Requests without an answer at the end.
    pub unanswered: usize,
    /// The share of the time that tasks of the nano guest ran: s after the command, and the share.
    pub ran: Vec<(f64, f64)>,
}

/// What two clients noticed of a migration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct ClientsOutcome {
    /// Requests over TCP, all answered.
    pub requests: usize,
    /// The longest times between two answers to them.
    pub request_gaps_ms: Gaps,
    /// Datagrams sent at fixed times.
    pub datagrams: u32,
    /// Those without an answer.
    pub lost: usize,
    /// Those with more than one.
    pub repeated: usize,
    /// The longest times between two answers to them.
    pub datagram_gaps_ms: Gaps,
}
