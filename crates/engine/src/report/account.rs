//! The account at the end.

use hikkoshi_wire::Mode;
use serde::Serialize;

use crate::report::{CollapseAccount, Requests};

/// Pages by the way they went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Sent with their content in pre-copy, repeats included.
    pub precopy: u64,
    /// Sent as a mark, for they held only zeros, in any phase.
    pub zero: u64,
    /// Sent because the destination asked for them.
    pub urgent: u64,
    /// Sent in post-copy before anybody asked.
    pub background: u64,
    /// In the guest's RAM in all.
    pub guest: u64,
}

/// Bytes on the links, frame headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// On the background link, in pre-copy.
    pub precopy: u64,
    /// On the urgent link.
    pub urgent: u64,
    /// On the background link, in post-copy.
    pub background: u64,
    /// Device state, without framing.
    pub device_state: u64,
}

/// How often the guest's devices were drained in pre-copy, and how long that
/// took. Its disk requests wait meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Drains {
    /// Number of drains.
    pub count: u64,
    /// Time in all of them, in milliseconds.
    pub total_ms: f64,
    /// The longest one, in milliseconds.
    pub max_ms: f64,
}

/// How a guest is where it was moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestState {
    /// It runs.
    Running,
    /// It is paused, as its owner had paused it at the source.
    Paused,
    /// It has run there, and has shut itself down before all of its pages had
    /// arrived: it needs none any more.
    ShutDown,
}

impl GuestState {
    /// Of a guest that was to run there, or not.
    pub(crate) fn new(running: bool, shut_down: bool) -> Self {
        match (shut_down, running) {
            (true, _) => Self::ShutDown,
            (false, true) => Self::Running,
            (false, false) => Self::Paused,
        }
    }
}

/// What a finished migration cost. The command line writes it as JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Account {
    /// How the guest was moved, as asked for.
    pub mode: Mode,
    /// How it is there.
    pub guest_state: GuestState,
    /// From the connection to the last page received, in milliseconds.
    pub total_ms: f64,
    /// From the guest's stop at the source until the source heard that it
    /// runs at the destination, in milliseconds; 0 for a guest that was
    /// paused by its owner. At the destination: from the moment the source
    /// said that its guest is stopped.
    pub downtime_ms: f64,
    /// Pre-copy rounds, the last one with the guest stopped included.
    pub rounds: u32,
    /// Whether the guest switched before all of its memory was there.
    pub postcopy: bool,
    /// Pages by kind.
    pub pages: Pages,
    /// Bytes by kind.
    pub bytes: Bytes,
    /// Drains of the guest's devices, where it needed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drains: Option<Drains>,
    /// What was measured of the guest's faults.
    #[serde(flatten)]
    pub requests: Requests,
    /// How rebuilding huge pages went, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collapse: Option<CollapseAccount>,
}
