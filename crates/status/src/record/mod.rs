//! What is sent and stored.
//!
//! Names are a contract (`docs/status.md`, `docs/status.schema.json`): fields and kinds of records
//! may be added; a reader ignores those that it does not know. All times `at_ms` are milliseconds
//! since the migration began on this side.

#[cfg(test)]
pub(crate) mod examples;
mod map;
mod migration;
mod state;

use serde::{Deserialize, Serialize};

pub use map::{Frame, Map};
pub use migration::{Block, Memory, Migration, Side};
pub use state::{
    Bytes, GuestAt, LatencyBucket, Limits, Outage, Pages, Phase, Requests, Round, State, Step,
    TimeLeft,
};

/// One line of a status socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Always the first: all that was recorded before.
    Recording(Box<Recording>),
    /// The present state, ten times a second.
    State(Box<State>),
    /// Something was reported to the operator.
    Notice(Notice),
    /// The last line of an engine that was not killed.
    End(End),
}

/// What is known about one migration on one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// What is moved, from where to where.
    pub migration: Migration,
    /// Rates over time, at equal distances, which grow with the length of the migration.
    pub samples: Vec<Sample>,
    /// The map at some times, the first and the last included.
    pub frames: Vec<Frame>,
    /// What was reported to the operator: the newest.
    pub notices: Vec<Notice>,
    /// The last state. `None`: none was taken yet.
    pub state: Option<State>,
    /// How it ended. `None`: it is in progress, or its engine was killed.
    pub end: Option<End>,
}

/// Rates at one time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub at_ms: u64,
    /// The phase then.
    pub phase: Phase,
    /// Bytes per second on all links.
    pub bytes_per_second: f64,
    /// Pages that the guest dirtied per second; `None` where that is not known.
    pub dirty_pages_per_second: Option<f64>,
    /// Pages that were missing at the destination (at the source: unsent), in post-copy.
    pub missing_pages: Option<u64>,
    /// Page requests without an answer.
    pub waiting_pages: u64,
    /// Page requests per second.
    pub requests_per_second: f64,
    /// Mean latency of the requests that were answered since the sample before, in µs; `None`:
    /// there were none.
    pub latency_us: Option<f64>,
}

/// A message for the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// When.
    pub at_ms: u64,
    /// The message.
    pub text: String,
}

/// How a migration ended on one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// When.
    pub at_ms: u64,
    /// The exit status of the program: 0 the guest has moved, 1 it stays at the source, 3 it is
    /// handed over and not complete, 4 it is lost.
    pub exit_status: u8,
    /// Why, as a code of `docs/json.md`.
    pub reason: String,
    /// What happened, for a person.
    pub message: String,
    /// Where the guest is and what to do, for a person.
    pub next: Option<String>,
    /// The statistics, as `--json` writes them. `None` after a failure.
    pub account: Option<serde_json::Value>,
}
