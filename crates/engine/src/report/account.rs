//! The account of a finished migration.

use std::time::{Duration, Instant};

use hikkoshi_handover::History;
use hikkoshi_wire::Mode;

use crate::disks::DiskProgress;
use crate::network_frames::FramesAccount;
use crate::report::{
    AsynchronousFaults, CollapseAccount, Outage, Repeats, RequestStatistics, RoundAccount,
    SwitchoverStep,
};

/// Pages by the way they were sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pages {
    /// Sent with their content in pre-copy, repeats included.
    pub precopy: u64,
    /// Sent as a mark because they held only zeros, in any phase.
    pub zero: u64,
    /// Sent because the destination requested them.
    pub urgent: u64,
    /// Sent in post-copy without a request.
    pub background: u64,
    /// In the guest's RAM in total.
    pub guest: u64,
}

/// Bytes on the links, frame headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

/// How often the guest's devices were drained in pre-copy, and how long that took. Disk requests of
/// the guest wait meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drains {
    /// Number of drains.
    pub count: u64,
    /// Time in all of them, in milliseconds.
    pub total_ms: f64,
    /// The longest one, in milliseconds.
    pub max_ms: f64,
}

/// The guest's state at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestState {
    /// It runs.
    Running,
    /// It is paused, as its owner had paused it at the source.
    Paused,
    /// It has run there, and has shut itself down before all of its pages had arrived: no more
    /// pages are needed.
    ShutDown,
    /// It was resumed there, and has all of its pages. Its machine did not answer whether it still
    /// runs.
    Unknown,
}

impl GuestState {
    /// The state of a guest that was to run there, or to stay paused. `shut_down`: whether it has
    /// shut itself down, if that is known.
    pub(crate) fn new(running: bool, shut_down: Option<bool>) -> Self {
        match (shut_down, running) {
            (Some(true), _) => Self::ShutDown,
            (_, false) => Self::Paused,
            (Some(false), true) => Self::Running,
            (None, true) => Self::Unknown,
        }
    }
}

/// A time in milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// How long the migration took that this engine has worked on since `begun`, in milliseconds.
/// `history`: that of a migration that another engine began.
pub(crate) fn total_ms(begun: Instant, history: Option<&History>) -> f64 {
    let here = begun.elapsed();
    // The clock may have been set back.
    let total = history.and_then(|history| history.begun.elapsed().ok());
    millis(total.unwrap_or(here).max(here))
}

/// What a finished migration cost.
#[derive(Debug, Clone)]
pub struct Account {
    /// The mode that was requested.
    pub mode: Mode,
    /// The guest's state at the destination.
    pub guest_state: GuestState,
    /// Another engine began the migration. Its pages, bytes, requests, rounds and outages are not
    /// in this account; its times are.
    pub resumed: bool,
    /// From the connection to the last page received, in milliseconds. If another engine began the
    /// migration: from its beginning, by the clock of the host.
    pub total_ms: f64,
    /// The part of `total_ms` that this engine took, in milliseconds.
    pub engine_ms: f64,
    /// From the guest's pause at the source until the source received the report that it runs at
    /// the destination, in milliseconds; 0 for a guest that was paused by its owner. At the
    /// destination: from the message that the guest is paused at the source. `None`: not known,
    /// because an engine was killed meanwhile.
    pub downtime_ms: Option<f64>,
    /// At the source: the part of `downtime_ms` after which the guest likely ran, by the time that
    /// the destination took from *commit* on. `None`: the destination has not reported it, or the
    /// guest was paused by its owner.
    pub likely_downtime_ms: Option<f64>,
    /// The steps of the switchover on this side, with the time of each; empty if another engine
    /// performed it, and with a guest that was paused by its owner.
    pub switchover: Vec<SwitchoverStep>,
    /// Pre-copy rounds, including the last one with the guest paused.
    pub rounds: u32,
    /// Whether the switchover came before all of the guest's memory had arrived.
    pub postcopy: bool,
    /// Pages by kind.
    pub pages: Pages,
    /// Bytes by kind.
    pub bytes: Bytes,
    /// At the source: pages that were sent more than once. `None` if another engine began the
    /// migration: what it sent is not known.
    pub repeats: Option<Repeats>,
    /// At the source: the newest rounds of pre-copy. They do not include the last one with the
    /// guest paused.
    pub round_accounts: Vec<RoundAccount>,
    /// The newest times without links after the handover.
    pub outages: Vec<Outage>,
    /// At the source, with [`SourceOptions::log_ranges`](crate::SourceOptions::log_ranges): pages
    /// that were dirty again when they were sent in a pre-copy round, and so were sent once more
    /// only because the log had been taken too early. Those of the last round are not counted.
    pub stale_pages: Option<u64>,
    /// At the source: the disks that were copied.
    pub disks: Vec<DiskProgress>,
    /// Bytes of the disks' connections, from the source to the destination.
    pub disk_bytes: u64,
    /// Drains of the guest's devices, where it needed them.
    pub drains: Option<Drains>,
    /// Frames that arrived for the guest during the switchover, where they were kept.
    pub frames: Option<FramesAccount>,
    /// Measurements of the guest's faults.
    pub requests: RequestStatistics,
    /// The result of rebuilding huge pages, if that was requested.
    pub collapse: Option<CollapseAccount>,
    /// At the source, where post-copy was possible: the bytes of guest memory, if any, that were
    /// private to the guest's process. In post-copy they would have been lost with it.
    pub source_private_bytes: Option<u64>,
    /// At the source, where the adapter knows it: whether the guest uses KVM's asynchronous page
    /// faults.
    pub asynchronous_faults: Option<AsynchronousFaults>,
    /// What the destination was asked for besides and has not done, with what to do there, for
    /// people ([`DestinationGuest::complete`](crate::DestinationGuest::complete)). On both sides;
    /// `None` at the source also if it was not reported, because the links were lost.
    pub left_to_do: Option<String>,
}
