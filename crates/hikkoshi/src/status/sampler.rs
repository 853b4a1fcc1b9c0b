//! Takes the state of a migration from the engine.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use hikkoshi_engine::report::{
    GuestAt, Live, Outage, Phase, Repeated, Repeats, RoundAccount, Snapshot, Stage,
};
use hikkoshi_engine::{DiskProgress, Mode, SourceControl, SourceOptions, report};
use hikkoshi_estimate::WorkingSet;
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_pages::{GuestRange, PAGE_BYTES};
use hikkoshi_status::{self as status, Block, Converges, Memory, Migration, State};

use super::cells::Cells;
use super::converges::converges;
use super::rates::Rate;
use super::session::SessionInfo;
use super::time_left::{Plan, Speed, Writes, time_left};

/// Takes one state after another.
#[derive(Debug)]
pub(super) struct Sampler {
    live: Arc<Live>,
    /// At the source.
    control: Option<SourceControl>,
    bytes: Rate,
    /// Pages with content.
    sent: Rate,
    disks: Rate,
    cells: Cells,
    phase: Phase,
    max_downtime: Duration,
    working_set: Option<WorkingSet>,
}

impl Sampler {
    pub(super) fn new(
        live: &Arc<Live>,
        info: &SessionInfo,
        control: Option<SourceControl>,
    ) -> Self {
        let max_downtime = info.max_downtime_ms.map(Duration::from_millis);
        Self {
            max_downtime: max_downtime.unwrap_or(SourceOptions::default().max_downtime),
            working_set: info.working_set.clone(),
            live: Arc::clone(live),
            control,
            bytes: Rate::default(),
            // 16 reads of 1 MiB.
            sent: Rate::of_pieces(16 << 8),
            disks: Rate::of_pieces(16 << 20),
            cells: Cells::default(),
            phase: Phase::Connecting,
        }
    }

    /// The present state.
    pub(super) fn state(&mut self) -> State {
        let now = self.live.snapshot();
        if now.phase != self.phase {
            // The rate of a pre-copy says little about post-copy.
            self.sent.forget();
            self.phase = now.phase;
        }
        let bytes = now.bytes;
        let bytes = bytes.precopy + bytes.urgent + bytes.background + now.disk_bytes;
        let bytes_per_second = self.bytes.add(now.at, bytes).present;
        let pages = now.pages;
        let sent = pages.precopy + pages.urgent + pages.background;
        let speed = Speed {
            pages: self.sent.add_between_zeros(now.at, sent, pages.zero),
            disks: self.disks.add(now.at, now.disk_bytes),
        };
        let (map, written) = self.cells.map(self.live.map(), &now);
        let mode = self.live.mode();
        let writes = Writes {
            now: written,
            working_set: self.working_set.as_ref(),
        };
        let limits = self.control.as_ref().map(SourceControl::limits);
        let stalled = self.control.as_ref().map(SourceControl::when_stalled);
        let defaults = SourceOptions::default();
        let (when_stalled, max_rounds) =
            stalled.unwrap_or((defaults.when_stalled, defaults.max_rounds));
        let plan = Plan {
            mode,
            max_downtime: limits.map_or(self.max_downtime, |limits| limits.max_downtime),
            bandwidth: limits.and_then(|limits| limits.bandwidth),
            when_stalled,
            max_rounds,
        };
        let converges = converges(&now, &plan);
        let has_links = now.outages.last().is_none_or(|outage| outage.to.is_some());
        let ends = converges != Some(Converges::No) && has_links;
        State {
            limits: limits.map(|limits| status::Limits {
                max_downtime_ms: (mode == Mode::Precopy).then(|| millis(limits.max_downtime)),
                bandwidth: limits.bandwidth,
            }),
            time_left: time_left(&now, &plan, &speed, &writes).filter(|_| ends),
            converges,
            dirty_pages_per_second: written.rate,
            bytes_per_second,
            map,
            ..state(&now)
        }
    }
}

/// What is moved.
pub(super) fn migration(live: &Live, info: &SessionInfo) -> Migration {
    let started = live.started().duration_since(UNIX_EPOCH);
    Migration {
        id: live.name(),
        side: info.side,
        pid: std::process::id(),
        host: host(),
        guest: info.guest.clone(),
        qmp: info
            .qmp
            .as_ref()
            .map(|path| path.to_string_lossy().into_owned()),
        peer: live.peer().to_owned(),
        mode: mode(live.mode()).to_owned(),
        started_unix_ms: started.map_or(0, millis),
        max_downtime_ms: info.max_downtime_ms,
        bandwidth: info.bandwidth,
        resumed: live.is_resumed(),
        memory: Memory {
            pages: live.layout().pages(),
            page_bytes: PAGE_BYTES,
            cell_pages: live.map().cell_pages(),
            blocks: live
                .layout()
                .blocks()
                .map(|(block, range)| Block {
                    id: block.id.clone(),
                    first_page: range.start().index(),
                    pages: range.len(),
                    guest: block.guest.iter().map(guest_range).collect(),
                })
                .collect(),
        },
    }
}

fn host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Precopy => "precopy",
        Mode::Postcopy => "postcopy",
        Mode::Hybrid => "hybrid",
    }
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The phase. The source connects again after an outage, when disks were copied long ago. A
/// destination does not know when they are complete, but the first page follows them.
fn phase(now: &Snapshot) -> status::Phase {
    let copies_disks = now.guest_at == GuestAt::Source
        && match (now.stage, now.phase) {
            (Stage::Source(_), Phase::Connecting) => !now.disks.is_empty(),
            (Stage::Destination(_), Phase::Connecting | Phase::Precopy) => {
                now.disk_bytes > 0 && now.pages.precopy + now.pages.zero == 0
            }
            _ => false,
        };
    match now.phase {
        _ if copies_disks => status::Phase::Disks,
        Phase::Connecting => status::Phase::Connecting,
        Phase::Precopy => status::Phase::Precopy,
        Phase::Switchover => status::Phase::Switchover,
        Phase::Postcopy => status::Phase::Postcopy,
    }
}

/// All but rates and the map.
fn state(now: &Snapshot) -> State {
    let requests = &now.requests;
    State {
        at_ms: millis(now.at),
        phase: phase(now),
        round: now.round,
        done_pages: now.done_pages,
        total_pages: now.total_pages,
        stage: stage(now.stage).to_owned(),
        peer_stage: stage(now.peer_stage).to_owned(),
        guest_at: match now.guest_at {
            GuestAt::Source => status::GuestAt::Source,
            GuestAt::Paused => status::GuestAt::Paused,
            GuestAt::Destination => status::GuestAt::Destination,
        },
        pages: status::Pages {
            precopy: now.pages.precopy,
            zero: now.pages.zero,
            urgent: now.pages.urgent,
            background: now.pages.background,
            again: now.repeats.map_or(0, |repeats| repeats.precopy.pages),
        },
        bytes: status::Bytes {
            precopy: now.bytes.precopy,
            urgent: now.bytes.urgent,
            background: now.bytes.background,
            device_state: now.bytes.device_state,
            disks: now.disk_bytes,
        },
        repeats: now.repeats.as_ref().map(repeats),
        bytes_per_second: 0.0,
        dirty_pages_per_second: None,
        limits: None,
        time_left: None,
        converges: None,
        disks: now.disks.iter().map(disk).collect(),
        missing_pages: now.missing,
        waiting_pages: now.waiting.len() as u64,
        requests: status::Requests {
            count: requests.count,
            mean_us: requests.mean,
            p50_us: requests.p50,
            p99_us: requests.p99,
            max_us: requests.max,
            histogram: requests.histogram.iter().map(bucket).collect(),
        },
        downtime_ms: now.downtime.map(|downtime| downtime.as_secs_f64() * 1e3),
        likely_downtime_ms: now
            .likely_downtime
            .map(|downtime| downtime.as_secs_f64() * 1e3),
        switchover: now
            .switchover
            .iter()
            .map(|step| status::Step {
                step: step.step.to_owned(),
                after_pause_ms: step.at_ms,
            })
            .collect(),
        rounds: now.rounds.iter().map(round).collect(),
        outages: now.outages.iter().map(outage).collect(),
        map: status::Map::default(),
    }
}

/// The copy of a disk.
pub(crate) fn disk(disk: &DiskProgress) -> status::DiskCopy {
    status::DiskCopy {
        name: disk.name.clone(),
        copied_bytes: disk.copied,
        total_bytes: disk.total,
        in_sync: disk.in_sync,
    }
}

/// Pages that were sent more than once.
pub(crate) fn repeats(repeats: &Repeats) -> status::Repeats {
    let of = |repeated: Repeated| status::Repeated {
        pages: repeated.pages,
        bytes: repeated.bytes,
    };
    status::Repeats {
        precopy: of(repeats.precopy),
        stale: of(repeats.stale),
        host_page: of(repeats.host_page),
        resent: of(repeats.resent),
        requested: of(repeats.requested),
    }
}

fn guest_range(range: &GuestRange) -> status::GuestRange {
    status::GuestRange {
        address: range.gpa,
        offset: range.offset,
        bytes: range.bytes,
    }
}

fn bucket(bucket: &report::Bucket) -> status::LatencyBucket {
    status::LatencyBucket {
        le_us: bucket.le_us,
        count: bucket.count,
    }
}

/// A round of pre-copy.
pub(crate) fn round(round: &RoundAccount) -> status::Round {
    status::Round {
        round: round.round,
        begun_ms: millis(round.begun),
        ended_ms: round.ended.map(millis),
        pages: round.pages,
        zero: round.zero,
        bytes: round.bytes,
        dirty_pages: round.dirty_pages,
    }
}

/// A time without links.
pub(crate) fn outage(outage: &Outage) -> status::Outage {
    status::Outage {
        from_ms: millis(outage.from),
        to_ms: outage.to.map(millis),
        until_ms: outage.until.map(millis),
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Source(SourceStage::Owned) => "owned",
        Stage::Source(SourceStage::Committed) => "committed",
        Stage::Source(SourceStage::HandedOver) => "handed_over",
        Stage::Source(SourceStage::Done) => "done",
        Stage::Destination(DestinationStage::Receiving) => "receiving",
        Stage::Destination(DestinationStage::Ready) => "ready",
        Stage::Destination(DestinationStage::Running) => "running",
        Stage::Destination(DestinationStage::Complete) => "complete",
        Stage::Destination(DestinationStage::Declined) => "declined",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hikkoshi_engine::report::{Bytes, LatencySummary, Pages};

    pub(crate) fn snapshot() -> Snapshot {
        Snapshot {
            at: Duration::from_secs(1),
            phase: Phase::Precopy,
            round: 1,
            done_pages: 0,
            total_pages: 0,
            stage: Stage::Source(SourceStage::Owned),
            peer_stage: Stage::Destination(DestinationStage::Receiving),
            guest_at: GuestAt::Source,
            pages: Pages {
                guest: 1000,
                ..Pages::default()
            },
            repeats: None,
            bytes: Bytes::default(),
            content: None,
            disk_content: None,
            disks: Vec::new(),
            disk_bytes: 0,
            missing: None,
            waiting: Vec::new(),
            requests: LatencySummary::default(),
            downtime: None,
            likely_downtime: None,
            switchover: Vec::new(),
            rounds: Vec::new(),
            outages: Vec::new(),
        }
    }

    /// A state in which the guest runs at the source.
    pub(crate) fn precopy_state() -> State {
        state(&snapshot())
    }

    #[test]
    fn a_state_has_the_numbers_of_the_snapshot() {
        let mut now = snapshot();
        now.pages.urgent = 5;
        let repeated = |pages| Repeated {
            pages,
            bytes: pages * PAGE_BYTES,
        };
        now.repeats = Some(Repeats {
            precopy: repeated(7),
            stale: repeated(8),
            host_page: repeated(9),
            resent: repeated(10),
            requested: repeated(11),
        });
        now.downtime = Some(Duration::from_micros(2500));
        now.likely_downtime = Some(Duration::from_micros(1500));
        now.disks = vec![DiskProgress {
            name: "vda".into(),
            copied: 5,
            total: 9,
            in_sync: false,
        }];
        now.outages = vec![Outage {
            from: Duration::from_millis(3),
            to: None,
            until: Some(Duration::from_millis(4)),
        }];
        let state = state(&now);
        assert_eq!(
            (state.at_ms, state.pages.urgent, state.pages.again),
            (1000, 5, 7)
        );
        let of = state.repeats.unwrap();
        let pages = [of.precopy, of.stale, of.host_page, of.resent, of.requested];
        assert_eq!(pages.map(|it| it.pages), [7, 8, 9, 10, 11]);
        assert_eq!(of.requested.bytes, 11 * PAGE_BYTES);
        assert_eq!(state.downtime_ms, Some(2.5));
        assert_eq!(state.likely_downtime_ms, Some(1.5));
        assert_eq!(
            (state.stage.as_str(), state.peer_stage.as_str()),
            ("owned", "receiving")
        );
        let outage = state.outages[0];
        assert_eq!((outage.from_ms, outage.until_ms), (3, Some(4)));
        let copy = &state.disks[0];
        assert_eq!((copy.copied_bytes, copy.total_bytes), (5, 9));
    }

    #[test]
    fn disks_are_copied_before_the_guest_has_moved() {
        let mut now = snapshot();
        now.phase = Phase::Connecting;
        assert_eq!(phase(&now), status::Phase::Connecting);
        now.disks = vec![DiskProgress {
            name: "vda".into(),
            copied: 5,
            total: 9,
            in_sync: false,
        }];
        (now.disk_bytes, now.bytes.precopy) = (7, 3);
        assert_eq!(phase(&now), status::Phase::Disks);
        assert_eq!(super::state(&now).bytes.disks, 7);
        // The links were lost in post-copy, and are opened again.
        now.guest_at = GuestAt::Destination;
        assert_eq!(phase(&now), status::Phase::Connecting);
        let mut there = snapshot();
        there.stage = Stage::Destination(DestinationStage::Receiving);
        there.phase = Phase::Connecting;
        assert_eq!(phase(&there), status::Phase::Connecting);
        there.disk_bytes = 7;
        assert_eq!(phase(&there), status::Phase::Disks);
        there.phase = Phase::Precopy;
        assert_eq!(phase(&there), status::Phase::Disks);
        there.pages.zero = 1;
        assert_eq!(phase(&there), status::Phase::Precopy);
    }
}
