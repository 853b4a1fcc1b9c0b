//! What a migration does, in numbers: counters ([`Counters`], [`Latency`]), progress while it runs
//! ([`Progress`]), and the account at the end ([`Account`]).

mod account;
mod asynchronous_faults;
mod counters;
mod faults;
mod latency;
mod progress;
mod stages;
mod switchover;
mod tracker;

pub use account::{Account, Bytes, Drains, GuestState, Pages};
pub use asynchronous_faults::AsynchronousFaults;
pub use counters::Counters;
pub use faults::{CollapseAccount, CollapseFailures, FaultKind, RequestStatistics, ThreadFaults};
pub use latency::{Bucket, Latency, LatencySummary};
pub use progress::{Observer, Phase, Progress, Silent};
pub use stages::{RequestLatencies, RequestTimeline, Stages};
pub use switchover::SwitchoverStep;
pub(crate) use switchover::SwitchoverSteps;
pub use tracker::Tracker;
