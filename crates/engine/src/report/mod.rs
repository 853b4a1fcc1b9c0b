//! What a migration does, in numbers: counters ([`Counters`], [`Latency`]), and the state while it
//! runs ([`Live`], [`Snapshot`]). What they are is defined in [`hikkoshi_account`].

mod account;
mod counters;
mod latency;
mod live;
mod observer;
mod on_wire;
mod repeats;
mod stages;
mod switchover;
mod tracker;

pub use hikkoshi_account::{
    Account, AsynchronousFaults, Bucket, Bytes, CollapseAccount, CollapseFailures, DiskCopy,
    Drains, FaultKind, FramesAccount, GuestAt, GuestState, LatencySummary, Outage, Pages, Phase,
    Repeated, Repeats, RequestStatistics, Round, Stage, Stages, State, SwitchoverStep,
    ThreadFaults,
};

pub(crate) use account::{guest_state, millis, total_ms, whole_millis};
pub use counters::Counters;
pub use latency::Latency;
pub use live::{Cell, CellCounts, Live, MAX_CELLS, MemoryMap, Snapshot};
pub(crate) use live::{LiveStart, MissingAndRequested, MissingRanges};
pub(crate) use observer::last_sign_before;
pub use observer::{Observer, Silent};
pub(crate) use on_wire::{add_measures, latency_received, latency_sent, measures};
pub(crate) use repeats::Repeat;
pub use repeats::RepeatCounters;
pub use stages::{RequestLatencies, RequestTimeline};
pub(crate) use switchover::SwitchoverSteps;
pub use tracker::Tracker;
