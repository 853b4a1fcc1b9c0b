//! Takes the state of a migration from the engine.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use hikkoshi_account::{Converges, Limits, Phase, State};
use hikkoshi_engine::report::Live;
use hikkoshi_engine::{Mode, SourceControl, SourceOptions};
use hikkoshi_estimate::WorkingSet;
use hikkoshi_pages::{GuestRange, PAGE_BYTES};
use hikkoshi_status::{self as status, Block, Memory, Migration};

use super::cells::Cells;
use super::converges::converges;
use super::rates::Rate;
use super::run_info::RunInfo;
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
    pub(super) fn new(live: &Arc<Live>, info: &RunInfo, control: Option<SourceControl>) -> Self {
        let max_downtime = info.limits.max_downtime_ms.map(Duration::from_millis);
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
        let state = &now.state;
        if state.phase != self.phase {
            // The rate of a pre-copy says little about post-copy.
            self.sent.forget();
            self.phase = state.phase;
        }
        let bytes = state.bytes.of_pages_and_disks();
        let bytes_per_second = self.bytes.add(now.at, bytes).present;
        let pages = state.pages;
        let sent = pages.precopy + pages.urgent + pages.background;
        let speed = Speed {
            pages: self.sent.add_between_zeros(now.at, sent, pages.zero),
            disks: self.disks.add(now.at, state.bytes.disks.unwrap_or(0)),
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
        let has_links = state.outage().is_none();
        let ends = converges != Some(Converges::No) && has_links;
        State {
            limits: limits.map(|limits| Limits {
                max_downtime_ms: (mode == Mode::Precopy).then(|| millis(limits.max_downtime)),
                bandwidth: limits.bandwidth,
            }),
            time_left: time_left(&now, &plan, &speed, &writes).filter(|_| ends),
            converges,
            dirty_pages_per_second: written.rate,
            bytes_per_second,
            map,
            ..now.state
        }
    }
}

/// What is moved.
pub(super) fn migration(live: &Live, info: &RunInfo) -> Migration {
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
        mode: Some(live.mode()),
        started_unix_ms: started.map_or(0, millis),
        limits: info.limits,
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

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn guest_range(range: &GuestRange) -> status::GuestRange {
    status::GuestRange {
        address: range.gpa,
        offset: range.offset,
        bytes: range.bytes,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hikkoshi_account::{Pages, Side};
    use hikkoshi_engine::report::Snapshot;

    pub(crate) fn snapshot() -> Snapshot {
        Snapshot {
            at: Duration::from_secs(1),
            state: precopy_state(),
            content: None,
            disk_content: None,
            waiting: Vec::new(),
        }
    }

    /// A state in which the guest runs at the source.
    pub(crate) fn precopy_state() -> State {
        State {
            at_ms: 1000,
            phase: Phase::Precopy,
            round: 1,
            pages: Pages {
                guest: 1000,
                ..Pages::default()
            },
            ..State::new(Side::Source)
        }
    }
}
