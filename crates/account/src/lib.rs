//! The numbers of a migration, each defined once.
//!
//! # Model
//!
//! The engine counts and measures. What it reports has two forms: the [`State`] while the migration
//! runs, and the [`Account`] at its end. Everything that shows, records or reads a migration uses
//! these types: progress, status, metrics, dashboard, `--json`, tests and benchmarks.
//!
//! They are written as JSON, and a member has the name of its field unless that says otherwise. The
//! names are a contract: `docs/json.md` ([`Account`], [`Statistics`]) and `docs/status.md`
//! ([`State`]). Members may be added, and a reader ignores those that it does not know.
//!
//! A new number is added here, where it is measured, and where it is shown.
//!
//! | file | holds |
//! |---|---|
//! | `account.rs` | the account of a finished migration |
//! | `statistics.rs` | the account as `--json` writes it, with what the program adds |
//! | `state.rs` | the state of a migration at one time |
//! | `sent.rs` | pages and bytes, and pages that were sent more than once |
//! | `rounds.rs` | rounds of pre-copy, and times without links |
//! | `requests.rs` | page requests and faults, and their latency |
//! | `switchover.rs` | the steps of the switchover |
//! | `map.rs` | what has happened to the guest's memory |
//! | `names.rs` | the names of values, for labels and tables |
//! | `rate_text.rs`, `date_text.rs` | a rate and a time as text, for all who show one |
//!
//! # What is missing
//!
//! - What the two sides send to each other: `hikkoshi-wire` has types of its own, which are
//!   bounded.

mod account;
mod date_text;
mod map;
mod names;
mod rate_text;
mod requests;
mod rounds;
mod sent;
mod state;
mod statistics;
mod switchover;

pub use hikkoshi_wire::Mode;

pub use account::{
    Account, AsynchronousFaults, CollapseAccount, CollapseFailures, Drains, FramesAccount,
    GuestState,
};
pub use date_text::date_text;
pub use map::Map;
pub use rate_text::rate_text;
pub use requests::{Bucket, FaultKind, LatencySummary, RequestStatistics, Stages, ThreadFaults};
pub use rounds::{Outage, Round};
pub use sent::{Bytes, Compressed, Compression, DiskCopy, Pages, Repeated, Repeats};
pub use state::{Converges, GuestAt, Limits, Phase, Progress, Side, Stage, State, TimeLeft, Unit};
pub use statistics::{Auto, EngineInfo, Predicted, SourceQuit, Statistics};
pub use switchover::SwitchoverStep;
