//! What is sent and stored.
//!
//! Names are a contract (`docs/status.md`, `docs/assets/schemas/status.schema.json`): fields and
//! kinds of records may be added; a reader ignores those that it does not know. All times `at_ms`
//! are milliseconds since the migration began on this side.

mod dirty_rates;
#[cfg(test)]
pub(crate) mod examples;
mod frame;
mod migration;

use hikkoshi_account::{Phase, State, Statistics};
use serde::{Deserialize, Serialize};

pub use dirty_rates::DirtyRates;
pub use frame::Frame;
pub use migration::{Block, GuestRange, Memory, Migration};

/// One line of a status socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatusRecord {
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
    /// Dirty rates by cell (source). `None`: not known.
    pub dirty_rates: Option<DirtyRates>,
    /// What was reported to the operator: the newest.
    pub notices: Vec<Notice>,
    /// The last state. `None`: none was taken yet.
    pub state: Option<State>,
    /// How it ended. `None`: it is in progress, or its engine was killed.
    pub end: Option<End>,
    /// The engines of this side, one after another, if there were several: the recording has what
    /// all of them recorded. Empty: one engine, that of `migration`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<Engine>,
    /// What is not known, in a recording that `hikkoshi report` has made of a result of `--json`:
    /// the values of these members mean nothing. Engines know everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
}

/// One of several engines of a side, one after another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Its process.
    pub pid: u32,
    /// The name of its host.
    pub host: String,
    /// When it began: milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// Whether it resumed what another engine had begun.
    pub resumed: bool,
    /// When it began, in the times of the recording.
    pub begun_ms: u64,
    /// When the last thing happened that it recorded. `None`: it is the last engine.
    pub until_ms: Option<u64>,
    /// How it ended, without the statistics. `None`: it was killed, or is the last engine.
    pub end: Option<End>,
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
    /// A recording of a migration of which nothing was recorded yet.
    pub fn new(migration: Migration) -> Self {
        Self {
            version: crate::VERSION,
            migration,
            samples: Vec::new(),
            frames: Vec::new(),
            dirty_rates: None,
            notices: Vec::new(),
            state: None,
            end: None,
            engines: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Whether that part is known.
    pub fn knows(&self, part: Unknown) -> bool {
        !self.unknown.contains(&part)
    }

    /// When the last thing of the recording happened.
    pub fn last_ms(&self) -> u64 {
        let end = self.end.as_ref().map_or(0, |end| end.at_ms);
        let state = self.state.as_ref().map_or(0, |state| state.at_ms);
        let sample = self.samples.last().map_or(0, |sample| sample.at_ms);
        end.max(state).max(sample)
    }

    /// When its last engine began: milliseconds since 1970 (UTC).
    pub fn engine_started_unix_ms(&self) -> u64 {
        let last = self.engines.last();
        last.map_or(self.migration.started_unix_ms, |engine| {
            engine.started_unix_ms
        })
    }

    /// All engines, the first one first, also if there was only one. The last one has what the
    /// recording says of its end.
    pub fn all_engines(&self) -> Vec<Engine> {
        let mut engines = self.engines.clone();
        if engines.is_empty() {
            engines.push(Engine {
                pid: self.migration.pid,
                host: self.migration.host.clone(),
                started_unix_ms: self.migration.started_unix_ms,
                resumed: self.migration.resumed,
                begun_ms: 0,
                until_ms: None,
                end: None,
            });
        }
        if let Some(last) = engines.last_mut() {
            last.until_ms = Some(self.last_ms());
            last.end = self.end.as_ref().map(|end| End {
                account: None,
                ..end.clone()
            });
        }
        engines
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
    pub account: Option<Box<Statistics>>,
}
