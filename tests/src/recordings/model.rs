//! A guest and a link, in steps of 100 ms.

use hikkoshi_status::{
    Block, Bytes, GuestAt, GuestRange, Map, Memory, Migration, Outage, Pages, Phase, Repeated,
    Repeats, Requests, Round, Side, State, Step, TimeLeft,
};

use super::{Ending, Latencies, RecordedCase, RecordedMigration, account, end};

/// The time between two states, in ms.
const TICK: u64 = 100;

/// Bytes of a page on a link, with its header.
const PAGE_BYTES: u64 = 4108;

/// Pages that are on their way when the links are lost.
const RESENT: u64 = 48;

/// When the migration begins, in ms since 1970.
const BEGAN: u64 = 1_790_000_000_000;

/// The destination's engine begins so much later.
const LATER: u64 = 30;

/// Steps of the switchover: what was done, and when.
const SOURCE_STEPS: &[(&str, f64)] = &[
    ("paused", 0.42),
    ("stale pages known", 0.71),
    ("device state sent", 1.66),
    ("dirty log taken", 1.82),
    ("destination ready", 3.94),
    ("committed", 4.12),
    ("guest resumed", 4.61),
];
const DESTINATION_STEPS: &[(&str, f64)] = &[
    ("stale pages dropped", 0.24),
    ("everything received", 1.21),
    ("device state loaded", 2.78),
    ("readiness recorded", 3.02),
    ("commit received", 3.35),
    ("guest runs", 3.71),
    ("guest announced", 4.02),
];
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
            rated_pages: Some(0),
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
        if self.case.mode != "postcopy" {
            self.phase = Phase::Precopy;
            if !self.precopy() {
                return self.finish();
            }
        }
        self.switchover();
        if self.case.mode != "precopy" {
            self.postcopy();
        }
        self.finish()
    }

    fn hot(&self, cell: usize) -> bool {
        matches!(cell % 40, 7 | 8)
    }

    /// Rounds until few pages are dirty. Returns whether it was not cancelled.
    fn precopy(&mut self) -> bool {
        let rounds = if self.case.mode == "hybrid" { 1 } else { 6 };
        for round in 1..=rounds {
            let begun_ms = self.at_ms;
            self.rounds.push(Round {
                round,
                begun_ms,
                ended_ms: None,
                pages: 0,
                zero: 0,
                bytes: 0,
                dirty_pages: None,
            });
            if !self.round(round) {
                return false;
            }
            let dirty = self.map.dirty.iter().sum();
            let last = self.rounds.last_mut().unwrap();
            last.ended_ms = Some(self.at_ms);
            last.dirty_pages = Some(dirty);
            if dirty < self.case.link_pages / 8 {
                break;
            }
        }
        true
    }

    fn round(&mut self, round: u32) -> bool {
        self.done = 0;
        self.total = match round {
            1 => self.case.cells * self.case.cell_pages,
            _ => self.map.dirty.iter().sum(),
        };
        let mut left = self.case.link_pages;
        for cell in 0..self.map.sent.len() {
            let mut send = match round {
                1 => self.case.cell_pages,
                _ => self.map.dirty[cell],
            };
            // A quarter of a guest is zero.
            let zero = if round == 1 && cell % 4 == 3 {
                send / 2
            } else {
                0
            };
            self.done += zero;
            self.pages.zero += zero;
            self.map.sent[cell] += zero;
            self.rounds.last_mut().unwrap().zero += zero;
            send -= zero;
            if round > 1 {
                self.map.dirty[cell] = 0;
                self.sent_again(send);
            }
            while send > 0 {
                let part = send.min(left);
                if round == 1 {
                    self.map.sent[cell] += part;
                }
                self.send_precopy(part);
                send -= part;
                left -= part;
                if left == 0 {
                    self.dirty();
                    self.tick();
                    if let Ending::Cancelled(after) = self.case.ending
                        && self.states.len() as u64 >= after
                    {
                        return false;
                    }
                    left = self.case.link_pages;
                }
            }
        }
        self.dirty();
        self.tick();
        true
    }

    fn sent_again(&mut self, pages: u64) {
        self.pages.again += pages;
        add(&mut self.repeats.precopy, pages);
    }

    fn send_precopy(&mut self, pages: u64) {
        self.done += pages;
        self.pages.precopy += pages;
        self.bytes.precopy += pages * PAGE_BYTES;
        self.sent_in_tick += pages * PAGE_BYTES;
        let round = self.rounds.last_mut().unwrap();
        round.pages += pages;
        round.bytes += pages * PAGE_BYTES;
    }

    /// The guest writes for one step.
    fn dirty(&mut self) {
        for cell in 0..self.map.sent.len() {
            let hot = self.hot(cell);
            let rate = match hot {
                true => self.case.hot_rate + cell as u64 / 8,
                false if cell % 5 == 0 => self.case.hot_rate / 60,
                false => 0,
            };
            let written = rate * TICK / 1000;
            let sent = self.map.sent[cell];
            let before = self.map.dirty[cell];
            let after = (before + written).min(sent);
            self.map.dirty[cell] = after;
            self.map.dirty_per_second[cell] = if sent > 0 { rate } else { 0 };
            self.dirtied_in_tick += after - before;
        }
    }

    fn switchover(&mut self) {
        self.phase = Phase::Switchover;
        (self.done, self.total) = (0, self.map.dirty.iter().sum());
        if self.case.mode == "precopy" {
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
        if self.case.mode == "precopy" {
            self.complete = true;
            self.tick();
        }
    }

    fn postcopy(&mut self) {
        self.phase = Phase::Postcopy;
        let missing: Vec<u64> = match self.case.mode {
            "hybrid" => self.map.dirty.clone(),
            _ => self.map.sent.iter().map(|_| self.case.cell_pages).collect(),
        };
        self.map.dirty.fill(0);
        for map in [&mut self.map, &mut self.arrived] {
            map.by_request = vec![0; missing.len()];
            map.background = vec![0; missing.len()];
            map.missing = missing.clone();
        }
        self.arrived.waiting = vec![0; missing.len()];
        self.total = missing.iter().sum();
        self.done = 0;
        let mut tick = 0_u64;
        while self.done < self.total {
            if self.case.ending == Ending::Lost && self.done * 2 > self.total {
                return;
            }
            tick += 1;
            if self.case.outage && tick == 4 {
                self.outage();
            }
            self.requests(tick);
            self.background();
            self.tick();
        }
        self.arrived.waiting.fill(0);
        self.tick();
    }

    /// The guest faults in some cells.
    fn requests(&mut self, tick: u64) {
        self.arrived.waiting.fill(0);
        let cells = self.map.missing.len();
        for number in 0..60_u64 {
            let cell = usize::try_from((number * number * 31 + tick * 97) % cells as u64).unwrap();
            let cell = if number % 2 == 0 {
                cell / 40 * 40 + 7
            } else {
                cell
            };
            let Some(missing @ 1..) = self.map.missing.get(cell).copied() else {
                continue;
            };
            let pages = missing.min(3);
            for _ in 0..pages {
                self.latencies.add();
            }
            self.install(cell, pages, true);
            self.pages.urgent += pages;
            self.bytes.urgent += pages * PAGE_BYTES;
            self.sent_in_tick += pages * PAGE_BYTES;
            if number % 9 == 0 && self.map.missing[cell] > 0 {
                self.arrived.waiting[cell] = 1;
            }
        }
    }

    fn background(&mut self) {
        let mut left = self.case.link_pages / 2;
        for cell in 0..self.map.missing.len() {
            let pages = self.map.missing[cell].min(left);
            if pages == 0 {
                continue;
            }
            left -= pages;
            self.install(cell, pages, false);
            self.pages.background += pages;
            self.bytes.background += pages * PAGE_BYTES;
            self.sent_in_tick += pages * PAGE_BYTES;
        }
    }

    fn install(&mut self, cell: usize, pages: u64, requested: bool) {
        self.done += pages;
        if self.case.mode == "hybrid" {
            add(&mut self.repeats.stale, pages);
        }
        for map in [&mut self.map, &mut self.arrived] {
            map.missing[cell] -= pages;
            match requested {
                true => map.by_request[cell] += pages,
                false => map.background[cell] += pages,
            }
        }
    }

    /// Two seconds without links: a page that the guest waits for takes as long.
    fn outage(&mut self) {
        let from_ms = self.at_ms;
        self.outages.push(Outage {
            from_ms,
            to_ms: None,
        });
        self.arrived.waiting[47] = 1;
        for _ in 0..20 {
            self.tick();
        }
        self.latencies.add_micros(2_000_310.0);
        // These were on their way.
        add(&mut self.repeats.resent, RESENT);
        self.pages.background += RESENT;
        self.bytes.background += RESENT * PAGE_BYTES;
        self.outages.last_mut().unwrap().to_ms = Some(self.at_ms);
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

    #[allow(clippy::cast_precision_loss)] // Rates.
    fn state(&self, side: Side) -> State {
        let source = side == Side::Source;
        let handed_over = self.phase == Phase::Postcopy || self.phase == Phase::Switchover;
        let missing = self.map.missing.iter().sum::<u64>();
        let complete = self.complete || (self.phase == Phase::Postcopy && missing == 0);
        let source_stage = match (handed_over, complete) {
            (false, _) => "owned",
            (true, false) => "handed_over",
            (true, true) => "done",
        };
        let destination_stage = match (handed_over, complete) {
            (false, _) => "receiving",
            (true, false) => "running",
            (true, true) => "complete",
        };
        let (stage, peer_stage) = match source {
            true => (source_stage, destination_stage),
            false => (destination_stage, source_stage),
        };
        let steps = if source {
            SOURCE_STEPS
        } else {
            DESTINATION_STEPS
        };
        let in_precopy = self.phase == Phase::Precopy;
        let mut arrived = self.arrived.clone();
        arrived.sent.clone_from(&self.map.sent);
        let rate = self.sent_in_tick as f64 * 10.0;
        let dirty = (self.dirtied_in_tick > 0 && source && self.phase == Phase::Precopy)
            .then_some(self.dirtied_in_tick as f64 * 10.0);
        let mut map = if source { self.map.clone() } else { arrived };
        map.rated_pages = Some(match dirty {
            Some(_) => self.case.cells * self.case.cell_pages,
            None => 0,
        });
        // The destination does not know the rounds.
        let [done, total] = match in_precopy && !source {
            true => [0, 0],
            false => [self.done, self.total],
        };
        State {
            at_ms: self.at_ms,
            phase: self.phase,
            round: match in_precopy && source {
                true => self.rounds.last().map_or(0, |round| round.round),
                false => 0,
            },
            done_pages: done,
            total_pages: total,
            stage: stage.into(),
            peer_stage: peer_stage.into(),
            guest_at: match self.phase {
                Phase::Connecting | Phase::Disks | Phase::Precopy => GuestAt::Source,
                Phase::Switchover if source && !complete => GuestAt::Paused,
                Phase::Switchover | Phase::Postcopy => GuestAt::Destination,
            },
            pages: self.pages,
            bytes: self.bytes,
            disks: Vec::new(),
            repeats: source.then_some(self.repeats),
            bytes_per_second: rate,
            dirty_pages_per_second: dirty,
            limits: None,
            time_left: (total > done).then(|| time_left(total - done, self.case)),
            converges: None,
            missing_pages: (self.phase == Phase::Postcopy).then_some(missing),
            waiting_pages: match source {
                true => 0,
                false => self.arrived.waiting.iter().sum(),
            },
            requests: match source {
                true => Requests::default(),
                false => self.latencies.requests(),
            },
            downtime_ms: handed_over.then_some(DOWNTIME),
            likely_downtime_ms: (handed_over && source).then_some(LIKELY_DOWNTIME),
            switchover: match handed_over {
                true => steps.iter().map(step).collect(),
                false => Vec::new(),
            },
            rounds: if source {
                self.rounds.clone()
            } else {
                Vec::new()
            },
            outages: self.outages.clone(),
            map,
        }
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
                ends[0].account = Some(account(DOWNTIME, LIKELY_DOWNTIME));
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
            peer: if source {
                "host-b:7000"
            } else {
                "host-a:51002"
            }
            .into(),
            mode: self.case.mode.into(),
            started_unix_ms: if source { BEGAN } else { BEGAN + LATER },
            max_downtime_ms: source.then_some(300),
            bandwidth: None,
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

fn step((step, after_pause_ms): &(&str, f64)) -> Step {
    Step {
        step: (*step).to_owned(),
        after_pause_ms: *after_pause_ms,
    }
}

#[allow(clippy::cast_precision_loss)] // Seconds.
fn time_left(pages: u64, case: &RecordedCase) -> TimeLeft {
    let likely_s = pages as f64 / (case.link_pages * 1000 / TICK) as f64;
    TimeLeft {
        low_s: likely_s * 0.8,
        likely_s,
        high_s: (case.mode != "precopy").then_some(likely_s * 1.5),
    }
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
