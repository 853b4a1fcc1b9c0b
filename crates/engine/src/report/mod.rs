//! What a migration does, in numbers: counters ([`Counters`], [`Latency`]), the state while it runs
//! ([`Live`], [`Snapshot`]), and the account at the end ([`Account`]).

mod account;
mod asynchronous_faults;
mod counters;
mod faults;
mod latency;
mod live;
mod observer;
mod repeats;
mod stages;
mod switchover;
mod tracker;

pub use account::{Account, Bytes, Drains, GuestState, Pages};
pub(crate) use account::{millis, total_ms};
pub use asynchronous_faults::AsynchronousFaults;
pub use counters::Counters;
pub use faults::{CollapseAccount, CollapseFailures, FaultKind, RequestStatistics, ThreadFaults};
pub use latency::{Bucket, Latency, LatencySummary};
pub use live::{
    Cell, CellCounts, GuestAt, LatencyCounters, Live, MAX_CELLS, MemoryMap, Outage, RoundAccount,
    Snapshot, Stage,
};
pub(crate) use live::{LiveStart, MissingAndRequested, MissingRanges};
pub use observer::{Observer, Silent};
pub(crate) use repeats::Repeat;
pub use repeats::{RepeatCounters, Repeated, Repeats};
pub use stages::{RequestLatencies, RequestTimeline, Stages};
pub use switchover::SwitchoverStep;
pub(crate) use switchover::SwitchoverSteps;
pub use tracker::{Phase, Tracker};
