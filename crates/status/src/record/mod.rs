//! What is sent and stored.
//!
//! Names are a contract (`docs/status.md`, `docs/status.schema.json`): fields and kinds of records
//! may be added; a reader ignores those that it does not know. All times `at_ms` are milliseconds
//! since the migration began on this side.

mod dirty_rates;
#[cfg(test)]
pub(crate) mod examples;
mod map;
mod migration;
mod repeats;
mod state;

use serde::{Deserialize, Serialize};

pub use dirty_rates::DirtyRates;
pub use map::{Frame, Map};
pub use migration::{Block, GuestRange, Memory, Migration, Side};
pub use repeats::{Repeated, Repeats};
pub use state::{
    Bytes, GuestAt, LatencyBucket, Outage, Pages, Phase, Requests, Round, State, Step, TimeLeft,
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
    /// Dirty rates by cell (source). `None` in recordings of older engines.
    pub dirty_rates: Option<DirtyRates>,
    /// What was reported to the operator: the newest.
    pub notices: Vec<Notice>,
    /// The last state. `None`: none was taken yet.
    pub state: Option<State>,
    /// How it ended. `None`: it is in progress, or its engine was killed.
    pub end: Option<End>,
    /// What is not known, in a recording that `hikkoshi report` has made of a result of `--json`:
    /// the values of these members mean nothing. Engines know everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
}

/// A part of a recording that may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// Which side it is.
    Side,
    /// The process, host and peer.
    Engine,
    /// The mode.
    Mode,
    /// When the migration began.
    Began,
    /// How long it took, and when it ended.
    Duration,
    /// The size of the guest's memory.
    Memory,
    /// The map of the memory.
    Map,
    /// Times without links.
    Outages,
    /// What each round of pre-copy sent.
    Rounds,
}

impl Recording {
    /// Whether that part is known.
    pub fn knows(&self, part: Unknown) -> bool {
        !self.unknown.contains(&part)
    }
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
