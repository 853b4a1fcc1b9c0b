//! The state of a migration at one time.

use hikkoshi_handover::{DestinationStage, SourceStage};
use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Compression, DiskCopy, LatencySummary, Map, Outage, Pages, Repeats, Round,
    SwitchoverStep,
};

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

/// A side of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The guest leaves it: `hikkoshi migrate`.
    Source,
    /// The guest moves to it: `hikkoshi receive`.
    Destination,
}

/// The stage of the handover that one side has recorded (`docs/protocol.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Stage {
    /// At the source.
    Source(SourceStage),
    /// At the destination.
    Destination(DestinationStage),
}

impl Stage {
    /// Whose it is.
    pub fn side(self) -> Side {
        match self {
            Self::Source(_) => Side::Source,
            Self::Destination(_) => Side::Destination,
        }
    }

    /// Whether the guest was handed over, or may have been.
    pub fn is_handed_over(self) -> bool {
        match self {
            Self::Source(stage) => stage != SourceStage::Owned,
            Self::Destination(stage) => !matches!(
                stage,
                DestinationStage::Receiving | DestinationStage::Declined
            ),
        }
    }
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
    /// The stage of the handover that this side has recorded.
    pub stage: Stage,
    /// The stage of the other side, as far as it follows from its messages.
    pub peer_stage: Stage,
    /// Where the guest is.
    pub guest_at: GuestAt,
    /// Pages so far.
    pub pages: Pages,
    /// Bytes so far.
    pub bytes: Bytes,
    /// What compression has saved of these bytes so far. `None`: nothing was compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// Source: pages that were sent more than once. `None`: not known, because another engine began
    /// the migration.
    pub repeats: Option<Repeats>,
    /// Bytes per second on all links, over the last second.
    pub bytes_per_second: f64,
    /// Pages that the guest dirties per second; source, in pre-copy, if it is known of nearly all
    /// of its memory: from the end of the first round on.
    pub dirty_pages_per_second: Option<f64>,
    /// The present limits, which `hikkoshi set` changes; source only.
    pub limits: Option<Limits>,
    /// How long the migration still takes. `None`: not known, or pre-copy does not converge.
    pub time_left: Option<TimeLeft>,
    /// Whether pre-copy ends by itself (source, in pre-copy without post-copy).
    pub converges: Option<Converges>,
    /// The disks that are copied, or were: until the switchover; source only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskCopy>,
    /// Pages that are missing at the destination, at the source: not sent yet; in post-copy.
    pub missing_pages: Option<u64>,
    /// Destination: page requests without an answer. At the source 0.
    pub waiting_pages: u64,
    /// The latency of page requests: destination only.
    #[serde(with = "crate::requests::InState")]
    pub requests: LatencySummary,
    /// How long the guest has been paused: grows until it runs again. `None` before the pause, and
    /// for a guest that its owner had paused.
    pub downtime_ms: Option<f64>,
    /// How long the guest likely was paused (source): `downtime_ms` ends when this side received
    /// the report that the guest runs, so it is an upper bound. `None`: not known, because the
    /// destination has not reported it yet, or an engine was killed meanwhile.
    pub likely_downtime_ms: Option<f64>,
    /// The steps of the switchover that are done on this side.
    #[serde(with = "crate::switchover::in_state")]
    pub switchover: Vec<SwitchoverStep>,
    /// The rounds of pre-copy that have ended, and the present one: the newest 100 (source).
    pub rounds: Vec<Round>,
    /// Times without links after the handover: the newest 100.
    pub outages: Vec<Outage>,
    /// What has happened to the guest's memory.
    pub map: Map,
}

/// Limits of a migration at the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl State {
    /// The state of a migration that begins, on this side.
    pub fn new(side: Side) -> Self {
        let source = Stage::Source(SourceStage::Owned);
        let destination = Stage::Destination(DestinationStage::Receiving);
        let (stage, peer_stage) = match side {
            Side::Source => (source, destination),
            Side::Destination => (destination, source),
        };
        Self {
            at_ms: 0,
            phase: Phase::Connecting,
            round: 0,
            done_pages: 0,
            total_pages: 0,
            stage,
            peer_stage,
            guest_at: GuestAt::Source,
            pages: Pages::default(),
            bytes: Bytes::default(),
            compression: None,
            repeats: None,
            bytes_per_second: 0.0,
            dirty_pages_per_second: None,
            limits: None,
            time_left: None,
            converges: None,
            disks: Vec::new(),
            missing_pages: None,
            waiting_pages: 0,
            requests: LatencySummary::default(),
            downtime_ms: None,
            likely_downtime_ms: None,
            switchover: Vec::new(),
            rounds: Vec::new(),
            outages: Vec::new(),
            map: Map::default(),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader passes over what a later version has added.
    #[test]
    fn a_phase_of_a_newer_version_can_be_read() {
        let read = |text| serde_json::from_str::<Phase>(text).unwrap();
        assert_eq!(read(r#""disks""#), Phase::Disks);
        assert_eq!(read(r#""hibernation""#), Phase::Unknown);
    }

    #[test]
    fn the_progress_is_that_of_the_phase() {
        let mut state = State::new(Side::Source);
        state.phase = Phase::Precopy;
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
