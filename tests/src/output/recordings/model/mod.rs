//! A guest and a link, in steps of 100 ms.

mod postcopy;
mod precopy;
mod state;

use hikkoshi_account::{
    Bytes, Limits, Map, Mode, Outage, Pages, Phase, Repeated, Repeats, Round, Side, State,
};
use hikkoshi_status::{Block, GuestRange, Memory, Migration};

use super::{Ending, Latencies, RecordedCase, RecordedMigration, account, end};

/// The time between two states, in ms.
const TICK: u64 = 100;

/// Bytes of a page on a link, with its header.
const PAGE_BYTES: u64 = 4108;

/// When the migration begins, in ms since 1970.
const BEGAN: u64 = 1_790_000_000_000;

/// The destination's engine begins so much later.
const LATER: u64 = 30;

/// How long the guest is paused, in ms.
const DOWNTIME: f64 = 4.38;

/// How long it likely is paused, in ms.
const LIKELY_DOWNTIME: f64 = 4.21;

pub(super) struct Model<'a> {
    case: &'a RecordedCase,
    id: String,
    at_ms: u64,
    phase: Phase,
    map: Map,
    arrived: Map,
    pages: Pages,
    bytes: Bytes,
    repeats: Repeats,
    rounds: Vec<Round>,
    latencies: Latencies,
    outages: Vec<Outage>,
    states: Vec<(State, State)>,
    done: u64,
    total: u64,
    sent_in_tick: u64,
    dirtied_in_tick: u64,
    /// Whether a pre-copy has ended.
    complete: bool,
}

impl<'a> Model<'a> {
    pub(super) fn new(case: &'a RecordedCase, id: String) -> Self {
        let zeros = vec![0; usize::try_from(case.cells).unwrap()];
        let map = Map {
            sent: zeros.clone(),
            dirty: zeros.clone(),
            dirty_per_second: zeros.clone(),
            rated_pages: 0,
            missing: Vec::new(),
            waiting: Vec::new(),
            by_request: Vec::new(),
            background: Vec::new(),
        };
        let arrived = Map {
            sent: zeros,
            ..Map::default()
        };
        Self {
            case,
            id,
            at_ms: 0,
            phase: Phase::Connecting,
            map,
            arrived,
            pages: Pages::default(),
            bytes: Bytes::default(),
            repeats: Repeats::default(),
            rounds: Vec::new(),
            latencies: Latencies::default(),
            outages: Vec::new(),
            states: Vec::new(),
            done: 0,
            total: case.cells * case.cell_pages,
            sent_in_tick: 0,
            dirtied_in_tick: 0,
            complete: false,
        }
    }

    pub(super) fn run(mut self) -> RecordedMigration {
        self.tick();
        if self.case.mode != Mode::Postcopy {
            self.phase = Phase::Precopy;
            if !self.precopy() {
                return self.finish();
            }
        }
        self.switchover();
        if self.case.mode != Mode::Precopy {
            self.postcopy();
        }
        self.finish()
    }

    fn switchover(&mut self) {
        self.phase = Phase::Switchover;
        (self.done, self.total) = (0, self.map.dirty.iter().sum());
        if self.case.mode == Mode::Precopy {
            let round = self.rounds.last().map_or(1, |round| round.round + 1);
            let dirty: u64 = self.map.dirty.iter().sum();
            self.rounds.push(Round {
                round,
                begun_ms: self.at_ms,
                ended_ms: Some(self.at_ms + 4),
                pages: 0,
                zero: 0,
                bytes: 0,
                dirty_pages: Some(0),
            });
            self.sent_again(dirty);
            self.send_precopy(dirty);
            self.map.dirty.fill(0);
        }
        self.bytes.device_state = 163_000;
        self.map.dirty_per_second.fill(0);
        self.tick();
        if self.case.mode == Mode::Precopy {
            self.complete = true;
            self.tick();
        }
    }

    /// Records the state of both sides.
    fn tick(&mut self) {
        let source = self.state(Side::Source);
        let destination = self.state(Side::Destination);
        self.states.push((source, destination));
        self.at_ms += TICK;
        self.sent_in_tick = 0;
        self.dirtied_in_tick = 0;
    }

    fn finish(self) -> RecordedMigration {
        let migration = |side| self.migration(side);
        let at_ms = self.at_ms;
        let (source_end, destination_end) = match self.case.ending {
            Ending::Moved => {
                let mut ends = [
                    end(at_ms, 0, "moved", "the guest was moved", None),
                    end(at_ms, 0, "moved", "the guest was moved", None),
                ];
                let rounds = self.rounds.last().map_or(0, |round| round.round);
                ends[0].account = Some(account(rounds, DOWNTIME, LIKELY_DOWNTIME));
                let [source, destination] = ends;
                (source, destination)
            }
            Ending::Cancelled(_) => (
                end(
                    at_ms,
                    1,
                    "cancelled",
                    "cancelled by a signal",
                    Some("the guest still runs at the source; start the migration again"),
                ),
                end(at_ms, 1, "peer_cancelled", "the source was cancelled", None),
            ),
            Ending::Lost => {
                let next = Some("end the source's QEMU, and boot the guest again from its disks");
                let message = "the destination's QEMU has ended, and the guest with it";
                (
                    end(at_ms, 4, "guest_lost", message, next),
                    end(at_ms, 4, "guest_lost", message, next),
                )
            }
        };
        RecordedMigration {
            source: migration(Side::Source),
            destination: migration(Side::Destination),
            states: self.states,
            source_end,
            destination_end,
        }
    }

    fn migration(&self, side: Side) -> Migration {
        let source = side == Side::Source;
        let pages = self.case.cells * self.case.cell_pages;
        Migration {
            id: self.id.clone(),
            side,
            pid: if source { 4711 } else { 815 },
            host: if source { "host-a" } else { "host-b" }.into(),
            guest: self.case.guest.into(),
            qmp: None,
            peer: if source {
                "host-b:7000"
            } else {
                "host-a:51002"
            }
            .into(),
            mode: Some(self.case.mode),
            started_unix_ms: if source { BEGAN } else { BEGAN + LATER },
            limits: Limits {
                max_downtime_ms: source.then_some(300),
                bandwidth: None,
            },
            resumed: false,
            memory: Memory {
                pages,
                page_bytes: 4096,
                cell_pages: self.case.cell_pages,
                blocks: blocks(pages),
            },
        }
    }
}

fn add(repeated: &mut Repeated, pages: u64) {
    repeated.pages += pages;
    repeated.bytes += pages * 4096;
}

/// Main memory, and what a guest usually has beside it.
fn blocks(pages: u64) -> Vec<Block> {
    let others = [
        ("0000:00:02.0/vga.vram", 4096_u64),
        ("pc.bios", 64),
        ("pc.rom", 32),
        ("0000:00:03.0/virtio-net-pci.rom", 64),
    ];
    let small: u64 = others.iter().map(|(_, pages)| pages).sum();
    let mut blocks = vec![Block {
        id: "pc.ram".into(),
        first_page: 0,
        pages: pages - small,
        guest: mapped(pages - small),
    }];
    let mut first_page = pages - small;
    for (id, pages) in others {
        blocks.push(Block {
            id: id.into(),
            first_page,
            pages,
            guest: Vec::new(),
        });
        first_page += pages;
    }
    blocks
}

/// Where a PC has its main memory: from 3 GiB on it is mapped at 4 GiB.
fn mapped(pages: u64) -> Vec<GuestRange> {
    const GIB: u64 = 1 << 30;
    let bytes = pages * 4096;
    let range = |address, offset, bytes| GuestRange {
        address,
        offset,
        bytes,
    };
    vec![
        range(0, 0, bytes.min(3 * GIB)),
        range(4 * GIB, 3 * GIB, bytes.saturating_sub(3 * GIB)),
    ]
}
