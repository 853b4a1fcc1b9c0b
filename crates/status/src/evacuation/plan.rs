//! What was planned.

use hikkoshi_account::{Mode, Predicted};
use serde::{Deserialize, Serialize};

/// Who goes where, when, and how long that takes. Times are counted from the first move on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvacuationPlan {
    /// The moves, in the order in which they begin.
    pub moves: Vec<PlannedMove>,
    /// Guests that stay.
    pub stays: Vec<StayingGuest>,
    /// Where guests may go.
    pub destinations: Vec<PlannedDestination>,
    /// Moves that are under way at a time.
    pub at_once: usize,
    /// In which order they begin.
    pub order: MoveOrder,
    /// The time of the whole, in milliseconds.
    pub total_ms: Predicted,
    /// What the guests lose of their time, together: pauses and page faults, in milliseconds.
    pub felt_ms: Predicted,
    /// `None`: there is no deadline.
    pub within: Option<PlannedDeadline>,
}

/// One move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// The guest.
    pub guest: String,
    /// Its destination.
    pub to: String,
    /// How it is moved.
    pub mode: Mode,
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// When the move begins, in milliseconds.
    pub begins_ms: Predicted,
    /// When it ends, in milliseconds.
    pub ends_ms: Predicted,
    /// How long it takes, in milliseconds.
    pub total_ms: Predicted,
    /// How long the guest is paused, in milliseconds.
    pub downtime_ms: Predicted,
    /// What the guest loses of its time, in milliseconds.
    pub felt_ms: Predicted,
}

/// A guest that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StayingGuest {
    /// The guest.
    pub guest: String,
    /// Why, for people.
    pub reason: String,
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedDestination {
    /// Its address.
    pub to: String,
    /// How many guests go there.
    pub guests: usize,
    /// What they need of its memory, in bytes.
    pub memory_bytes: u64,
    /// What is free of it, in bytes. `None`: not known.
    pub free_memory_bytes: Option<u64>,
    /// What the line to it carries.
    pub line_bytes_per_second: Predicted,
}

/// The order in which moves begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveOrder {
    /// As the guests were named.
    Named,
    /// Those that take the least time first.
    ShortestFirst,
    /// Those that take the most time first.
    LongestFirst,
}

/// Whether a deadline is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedDeadline {
    /// The deadline, in milliseconds.
    pub deadline_ms: f64,
    /// Whether it is met.
    pub met: DeadlineMet,
    /// What would help.
    pub changes: Vec<PlannedChange>,
}

/// How sure it is that a deadline is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineMet {
    /// Also if all is slow.
    Yes,
    /// With the likely values.
    Likely,
    /// Only if all is fast.
    Unlikely,
    /// Not even then.
    No,
}

/// A change that would meet the deadline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedChange {
    /// What to change, for people.
    pub change: String,
    /// The time of the whole then, in milliseconds.
    pub total_ms: Predicted,
    /// Whether the deadline is met then.
    pub met: DeadlineMet,
}
