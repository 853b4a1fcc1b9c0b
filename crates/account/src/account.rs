//! The account of a finished migration.

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Compression, DiskCopy, Mode, Outage, Pages, Repeats, RequestStatistics, Round,
    SwitchoverStep,
};

/// What a finished migration cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The mode that was requested.
    pub mode: Mode,
    /// The guest's state at the destination.
    pub guest_state: GuestState,
    /// From the connection to the last page received, in milliseconds. If another engine began the
    /// migration: from its beginning, by the clock of the host.
    pub total_ms: f64,
    /// If another engine began the migration: the part of `total_ms` that this one took, in
    /// milliseconds. Pages, bytes, requests, rounds and outages are those of this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_ms: Option<f64>,
    /// From the guest's pause at the source until the source received the report that it runs at
    /// the destination, in milliseconds; 0 for a guest that was paused by its owner. At the
    /// destination: from the message that the guest is paused at the source. `None`: not known,
    /// because an engine was killed meanwhile.
    pub downtime_ms: Option<f64>,
    /// At the source: the part of `downtime_ms` after which the guest likely ran, by the time that
    /// the destination took from *commit* on. `None`: the destination has not reported it, or the
    /// guest was paused by its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likely_downtime_ms: Option<f64>,
    /// With post-copy: for how long the guest had run at the destination when its last page had
    /// arrived, in milliseconds. Meanwhile the loss of the source's host would have lost the guest.
    /// At the source from the report that it runs. `None`: no post-copy, or another engine resumed
    /// the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postcopy_ms: Option<f64>,
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
    /// What compression has saved of these bytes. `None`: nothing was compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// At the source: pages that were sent more than once. `None` if another engine began the
    /// migration: what it sent is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<Repeats>,
    /// At the source: the newest rounds of pre-copy. They do not include the last one with the
    /// guest paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds_detail: Vec<Round>,
    /// The newest times without links after the handover.
    pub outages: Vec<Outage>,
    /// At the source: the disks that were copied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskCopy>,
    /// Bytes of the disks' connections, from the source to the destination. `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// Drains of the guest's devices, where it needed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drains: Option<Drains>,
    /// Frames that arrived for the guest during the switchover, where they were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<FramesAccount>,
    /// Measurements of the guest's faults. In JSON, its members are members of the account.
    #[serde(flatten)]
    pub requests: RequestStatistics,
    /// The result of rebuilding huge pages, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse: Option<CollapseAccount>,
    /// At the source, where post-copy was possible: the bytes of guest memory, if any, that were
    /// private to the guest's process. In post-copy they would have been lost with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_private_bytes: Option<u64>,
    /// At the source, where the adapter knows it: whether the guest uses KVM's asynchronous page
    /// faults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asynchronous_faults: Option<AsynchronousFaults>,
    /// What the destination was asked for besides and has not done, with what to do there, for
    /// people. On both sides; `None` at the source also if it was not reported, because the links
    /// were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_to_do: Option<String>,
}

impl Account {
    /// The account of a migration that cost nothing.
    pub fn new(mode: Mode, guest_state: GuestState) -> Self {
        Self {
            mode,
            guest_state,
            total_ms: 0.0,
            engine_ms: None,
            downtime_ms: None,
            likely_downtime_ms: None,
            postcopy_ms: None,
            switchover: Vec::new(),
            rounds: 0,
            postcopy: false,
            pages: Pages::default(),
            bytes: Bytes::default(),
            compression: None,
            repeats: None,
            rounds_detail: Vec::new(),
            outages: Vec::new(),
            disks: Vec::new(),
            disk_bytes: None,
            drains: None,
            frames: None,
            requests: RequestStatistics::default(),
            collapse: None,
            source_private_bytes: None,
            asynchronous_faults: None,
            left_to_do: None,
        }
    }

    /// Whether another engine began the migration.
    pub fn is_resumed(&self) -> bool {
        self.engine_ms.is_some()
    }
}

/// The guest's state at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// How often the guest's devices were drained in pre-copy, and how long that took. Disk requests of
/// the guest wait meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drains {
    /// Number of drains.
    pub count: u64,
    /// Time in all of them, in milliseconds.
    pub total_ms: f64,
    /// The longest one, in milliseconds.
    pub max_ms: f64,
}

/// How many frames arrived for the guest during the switchover, and how many were delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FramesAccount {
    /// Frames that the guest did not get at the source, and that were sent to the destination. At
    /// the destination: that arrived there.
    pub kept: u64,
    /// Frames of these that were delivered to the guest's network cards at the destination.
    pub delivered: u64,
    /// Frames that were lost: too many, or their delivery failed.
    pub dropped: u64,
}

/// The result of rebuilding huge pages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CollapseAccount {
    /// Ranges of 2 MiB that hold data of the guest, as far as they were tried.
    pub tried: u64,
    /// Those that are huge pages now.
    pub rebuilt: u64,
    /// Those that are not, by reason, most frequent first.
    pub failed: Vec<CollapseFailures>,
    /// Why it ended early, if it did.
    pub stopped: Option<String>,
    /// How long it took, in milliseconds.
    pub total_ms: f64,
}

/// Ranges that did not become huge pages, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollapseFailures {
    /// The reason.
    pub reason: String,
    /// Number of ranges.
    pub count: u64,
}

/// Whether the guest can run another task on a processor while a page is on its way to it: KVM
/// interrupts the guest when a page is missing and when it is there (*Asynchronous Page Fault*, in
/// the kernel's `Documentation/virt/kvm/x86/msr.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AsynchronousFaults {
    /// The guest is emulated.
    NoKvm,
    /// The processors do not have the flag.
    Off,
    /// The processors have it, and the guest has not switched them on.
    Unused,
    /// The guest has switched them on, for at least one processor.
    Used,
    /// The guest's registers are not known to this engine.
    Unknown,
}
