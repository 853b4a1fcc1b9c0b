//! The state of a migration at one time.

use serde::{Deserialize, Serialize};

use super::{Map, Repeats};

/// The phase that a migration is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Links are opened.
    Connecting,
    /// The guest's disks are copied, before its memory.
    Disks,
    /// Memory is sent while the guest runs at the source.
    Precopy,
    /// The guest is paused.
    Switchover,
    /// The guest runs at the destination, pages follow.
    Postcopy,
    /// One of a newer version. Only read, never recorded.
    #[serde(other)]
    Unknown,
}

/// Where the guest is, as far as this side knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestAt {
    /// It runs at the source, or its owner has paused it there.
    Source,
    /// It is paused for the switchover.
    Paused,
    /// It runs at the destination.
    Destination,
}

/// The state of a migration at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// When.
    pub at_ms: u64,
    /// The phase.
    pub phase: Phase,
    /// The round of pre-copy, from 1 (source). 0 in other phases, and at the destination, which
    /// does not know it.
    pub round: u32,
    /// Pages of this round or phase that are done.
    pub done_pages: u64,
    /// Pages of this round or phase. 0 if they are not known: before pre-copy, while the guest is
    /// paused, and at the destination in pre-copy.
    pub total_pages: u64,
    /// The stage of the handover that this side has recorded: at the source `owned`, `committed`,
    /// `handed_over`, `done`; at the destination `receiving`, `ready`, `running`, `declined`,
    /// `complete` (`docs/protocol.md`).
    pub stage: String,
    /// The stage of the other side, as far as it follows from its messages: the same names.
    pub peer_stage: String,
    /// Where the guest is.
    pub guest_at: GuestAt,
    /// Pages so far.
    pub pages: Pages,
    /// Bytes so far.
    pub bytes: Bytes,
    /// Source: pages that were sent more than once. `None`: not known, because another engine began
    /// the migration, or this one is older.
    pub repeats: Option<Repeats>,
    /// Bytes per second on all links, over the last second.
    pub bytes_per_second: f64,
    /// Pages that the guest dirties per second; source, in pre-copy, if it is known of nearly all
    /// of its memory: from the end of the first round on.
    pub dirty_pages_per_second: Option<f64>,
    /// The present limits, which `hikkoshi set` changes; source only. An engine that is older does
    /// not send them.
    #[serde(default)]
    pub limits: Option<Limits>,
    /// How long the migration still takes. `None`: not known, or pre-copy does not converge.
    pub time_left: Option<TimeLeft>,
    /// Whether pre-copy ends by itself (source, in pre-copy without post-copy).
    #[serde(default)]
    pub converges: Option<Converges>,
    /// The disks that are copied, or were: until the switchover; source only. Empty: none, or the
    /// engine is older.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskCopy>,
    /// Pages that are missing at the destination, at the source: not sent yet; in post-copy.
    pub missing_pages: Option<u64>,
    /// Destination: page requests without an answer. At the source 0.
    pub waiting_pages: u64,
    /// The latency of page requests: destination only.
    pub requests: Requests,
    /// How long the guest has been paused: grows until it runs again. `None` before the pause, and
    /// for a guest that its owner had paused.
    pub downtime_ms: Option<f64>,
    /// How long the guest likely was paused (source): `downtime_ms` ends when this side received
    /// the report that the guest runs, so it is an upper bound. `None`: not known, because the
    /// destination is older, has not reported it yet, or an engine was killed meanwhile.
    #[serde(default)]
    pub likely_downtime_ms: Option<f64>,
    /// The steps of the switchover that are done on this side.
    pub switchover: Vec<Step>,
    /// The rounds of pre-copy that have ended, and the present one: the newest 100 (source).
    pub rounds: Vec<Round>,
    /// Times without links after the handover: the newest 100.
    pub outages: Vec<Outage>,
    /// What has happened to the guest's memory.
    pub map: Map,
}

/// Limits of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// How long pre-copy may pause the guest, in milliseconds. `None`: the mode has no such limit.
    pub max_downtime_ms: Option<u64>,
    /// Limit of background traffic, in bytes per second. `None`: no limit.
    pub bandwidth: Option<u64>,
}

/// Whether the rounds of pre-copy become short enough for the switchover, as far as the rounds so
/// far say (`docs/status.md` has the rule).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Converges {
    /// The dirty pages fit into the downtime, or become fewer.
    Yes,
    /// They do not.
    No,
    /// They do not, and post-copy follows after the last round that is allowed.
    Switches,
    /// Too few rounds have ended.
    Unknown,
}

/// Pages by the way they were sent or have arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// With their content in pre-copy, repeats included.
    pub precopy: u64,
    /// As a mark, because they held only zeros.
    pub zero: u64,
    /// Because they were requested.
    pub urgent: u64,
    /// In post-copy without a request.
    pub background: u64,
    /// Sent again in pre-copy, because the guest had written to them (source). Also in `repeats`;
    /// if that is not known, this is 0.
    pub again: u64,
}

/// Bytes by kind, frame headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// In pre-copy.
    pub precopy: u64,
    /// Answers of page requests.
    pub urgent: u64,
    /// In post-copy without a request.
    pub background: u64,
    /// The device state.
    pub device_state: u64,
    /// Of the disks' connections, from the source to the destination. An engine that is older does
    /// not count them.
    #[serde(default)]
    pub disks: u64,
}

/// The copy of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCopy {
    /// The disk, for people.
    pub name: String,
    /// Bytes that are copied.
    pub copied_bytes: u64,
    /// Bytes to copy: grows with what the guest writes meanwhile.
    pub total_bytes: u64,
    /// Whether both disks have the same content, and each write of the guest reaches both.
    pub in_sync: bool,
}

impl State {
    /// The present time without links, if there are none.
    pub fn outage(&self) -> Option<&Outage> {
        let last = self.outages.last();
        last.filter(|outage| outage.to_ms.is_none())
    }

    /// How far the present round or phase is: what is done, of how much, and what is counted.
    /// `None`: that is not known.
    pub fn progress(&self) -> Option<Progress> {
        let sum = |bytes: fn(&DiskCopy) -> u64| {
            let each = self.disks.iter().map(bytes);
            each.fold(0, u64::saturating_add)
        };
        let (done, total, unit) = match self.phase {
            Phase::Disks => {
                let done = sum(|disk| disk.copied_bytes);
                (done, sum(|disk| disk.total_bytes), Unit::DiskBytes)
            }
            _ => (self.done_pages, self.total_pages, Unit::Pages),
        };
        (total > 0).then(|| Progress {
            done: done.min(total),
            total,
            unit,
        })
    }
}

/// How far a round or phase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// So many are done,
    pub done: u64,
    /// of so many, which are not 0.
    pub total: u64,
    /// What they are.
    pub unit: Unit,
}

/// What the progress of a phase is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Pages of the guest's memory.
    Pages,
    /// Bytes of its disks.
    DiskBytes,
}

/// An estimate with its uncertainty, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimeLeft {
    /// If what is not known is as good as it may well be.
    pub low_s: f64,
    /// What is most likely.
    pub likely_s: f64,
    /// If what is not known is as bad as it may well be; `None`: it may not end.
    pub high_s: Option<f64>,
}

/// The latency of page requests, in µs: from the fault to the installed page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Number of requests that were answered.
    pub count: u64,
    /// Their mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// The distribution: powers of two, from the first to the last that is not empty.
    pub histogram: Vec<LatencyBucket>,
}

/// The requests that took at most `le_us`, and longer than the bucket before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Upper bound, in µs.
    pub le_us: u64,
    /// Requests in the bucket.
    pub count: u64,
}

/// A step of the switchover.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What was done.
    pub step: String,
    /// When it was done: milliseconds after the pause (at the destination: after the first message
    /// that the source sent since then).
    pub after_pause_ms: f64,
}

/// A round of pre-copy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// From 1.
    pub round: u32,
    /// When it began.
    pub begun_ms: u64,
    /// When everything had arrived. `None`: it is in progress.
    pub ended_ms: Option<u64>,
    /// Pages that were sent with their content.
    pub pages: u64,
    /// Pages that were sent as a mark.
    pub zero: u64,
    /// Bytes on the links.
    pub bytes: u64,
    /// Pages that were dirty at its end, estimated. `None`: it is in progress.
    pub dirty_pages: Option<u64>,
}

/// A time without links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// When the last sign of the other side arrived, which is before the loss was noticed: data, or
    /// at the source also an acknowledgement of the kernel there. On unix sockets: when it was
    /// noticed.
    pub from_ms: u64,
    /// When the links were up again. `None`: they are not.
    pub to_ms: Option<u64>,
    /// While they are not: until when this engine tries to replace them. `None`: without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use crate::record::examples::state;
    use crate::{DiskCopy, Phase, Unit};

    /// A reader passes over what a later version has added.
    #[test]
    fn a_phase_of_a_newer_version_can_be_read() {
        let read = |text| serde_json::from_str::<Phase>(text).unwrap();
        assert_eq!(read(r#""disks""#), Phase::Disks);
        assert_eq!(read(r#""hibernation""#), Phase::Unknown);
    }

    #[test]
    fn the_progress_is_that_of_the_phase() {
        let mut state = state(0);
        (state.done_pages, state.total_pages) = (0, 0);
        assert_eq!(state.progress(), None);
        (state.done_pages, state.total_pages) = (9, 5);
        let disk = |copied_bytes| DiskCopy {
            name: "vda".into(),
            copied_bytes,
            total_bytes: 100,
            in_sync: false,
        };
        state.disks = vec![disk(10), disk(30)];
        let pages = state.progress().unwrap();
        assert_eq!((pages.done, pages.total, pages.unit), (5, 5, Unit::Pages));
        state.phase = Phase::Disks;
        let disks = state.progress().unwrap();
        assert_eq!(
            (disks.done, disks.total, disks.unit),
            (40, 200, Unit::DiskBytes)
        );
        // A destination does not know how much there is.
        state.disks.clear();
        assert_eq!(state.progress(), None);
    }
}
