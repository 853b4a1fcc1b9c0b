//! Migrations for tests, as an engine records them.

use hikkoshi_account::{
    Bucket, Bytes, Compressed, Compression, Converges, DiskCopy, GuestAt, LatencySummary, Limits,
    Map, Mode, Outage, Pages, Phase, Repeated, Repeats, Round, Side, Stage, State, TimeLeft,
};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_status::{Block, End, Memory, Migration};

/// A guest with this many cells of 2 MiB. `number` tells migrations apart, and orders them.
pub(crate) fn migration(side: Side, number: u32, cells: u64) -> Migration {
    let cell_pages = 512;
    Migration {
        id: format!("{number:08x}{:024}", 0),
        side,
        pid: 1000 + number,
        host: "host-a".into(),
        guest: "web".into(),
        qmp: None,
        peer: "host-b:7000".into(),
        mode: Some(Mode::Hybrid),
        started_unix_ms: 1_700_000_000_000 + u64::from(number) * 1000,
        limits: Limits {
            max_downtime_ms: (side == Side::Source).then_some(300),
            bandwidth: None,
        },
        resumed: false,
        memory: Memory {
            pages: cells * cell_pages,
            page_bytes: 4096,
            cell_pages,
            blocks: vec![Block {
                id: "pc.ram".into(),
                first_page: 0,
                pages: cells * cell_pages,
                guest: Vec::new(),
            }],
        },
    }
}

/// A state of this time in post-copy, in which each number is another one. Each side has what its
/// engine knows.
pub(crate) fn state(migration: &Migration, at_ms: u64) -> State {
    let cells = migration.memory.cells();
    let cell = |times: u64| (0..cells).map(|cell| (cell * times) % 512).collect();
    let is_source = migration.side == Side::Source;
    let requests = LatencySummary {
        count: 110,
        mean: 200.0,
        p50: 60.0,
        p99: 900.0,
        max: 1900.0,
        histogram: [(8, 10), (64, 50), (128, 0), (1024, 40), (2048, 10)]
            .map(|(le_us, count)| Bucket { le_us, count })
            .to_vec(),
    };
    let round = |round: u32| Round {
        round,
        begun_ms: u64::from(round) * 100,
        ended_ms: Some(u64::from(round) * 100 + 100),
        pages: 50,
        zero: 5,
        bytes: 5000,
        dirty_pages: Some(7),
    };
    State {
        at_ms,
        phase: Phase::Postcopy,
        done_pages: 256,
        total_pages: 1024,
        stage: match is_source {
            true => Stage::Source(SourceStage::HandedOver),
            false => Stage::Destination(DestinationStage::Running),
        },
        peer_stage: match is_source {
            true => Stage::Destination(DestinationStage::Running),
            false => Stage::Source(SourceStage::Committed),
        },
        guest_at: GuestAt::Destination,
        pages: Pages {
            precopy: 1001,
            zero: 1002,
            urgent: 1003,
            background: 1004,
            guest: 0,
        },
        bytes: Bytes {
            precopy: 2001,
            urgent: 2002,
            background: 2003,
            device_state: 2004,
            disks: Some(2005),
        },
        disks: match is_source {
            true => [("vda", 5005, true), ("vdb", 1005, false)]
                .map(|(name, copied_bytes, in_sync)| DiskCopy {
                    name: name.into(),
                    copied_bytes,
                    total_bytes: 5005,
                    in_sync,
                })
                .to_vec(),
            false => Vec::new(),
        },
        repeats: is_source.then_some(Repeats {
            precopy: Repeated {
                pages: 1005,
                bytes: 1005 * 4096,
            },
            ..Repeats::default()
        }),
        bytes_per_second: 3001.5,
        time_left: Some(TimeLeft {
            low_s: 1.5,
            likely_s: 2.5,
            high_s: None,
        }),
        missing_pages: Some(4001),
        waiting_pages: if is_source { 0 } else { 4002 },
        requests: if is_source {
            LatencySummary::default()
        } else {
            requests
        },
        downtime_ms: Some(12.5),
        likely_downtime_ms: Some(10.5),
        rounds: match is_source {
            true => (1..=3).map(round).collect(),
            false => Vec::new(),
        },
        outages: vec![
            Outage {
                from_ms: 10,
                before_ms: 0,
                to_ms: Some(20),
                until_ms: None,
            },
            Outage {
                from_ms: at_ms.saturating_sub(1500),
                before_ms: 0,
                to_ms: None,
                until_ms: Some(at_ms + 8500),
            },
        ],
        map: Map {
            sent: cell(7),
            missing: cell(17),
            waiting: if is_source { Vec::new() } else { cell(19) },
            by_request: cell(23),
            background: cell(29),
            rated_pages: 0,
            ..Map::default()
        },
        ..State::new(migration.side)
    }
}

/// A state of this time in the third round of pre-copy.
#[allow(dead_code)] // Not all tests that have this module use it.
pub(crate) fn precopy_state(migration: &Migration, at_ms: u64) -> State {
    let is_source = migration.side == Side::Source;
    let cells = migration.memory.cells();
    let cell = |times: u64| (0..cells).map(|cell| (cell * times) % 512).collect();
    let after = state(migration, at_ms);
    let mut rounds = after.rounds;
    if let Some(present) = rounds.last_mut() {
        (present.ended_ms, present.dirty_pages) = (None, None);
    }
    let of_source = |value: u64| if is_source { value } else { 0 };
    State {
        phase: Phase::Precopy,
        round: if is_source { 3 } else { 0 },
        done_pages: of_source(256),
        total_pages: of_source(1024),
        stage: match is_source {
            true => Stage::Source(SourceStage::Owned),
            false => Stage::Destination(DestinationStage::Receiving),
        },
        peer_stage: match is_source {
            true => Stage::Destination(DestinationStage::Receiving),
            false => Stage::Source(SourceStage::Owned),
        },
        guest_at: GuestAt::Source,
        compression: Some(Compression {
            lz4: None,
            zstd: Some(Compressed {
                content_bytes: 3000,
                sent_bytes: 1005,
            }),
        }),
        dirty_pages_per_second: is_source.then_some(3002.5),
        time_left: after.time_left.filter(|_| is_source),
        converges: is_source.then_some(Converges::Yes),
        missing_pages: None,
        waiting_pages: 0,
        requests: LatencySummary::default(),
        downtime_ms: None,
        rounds,
        outages: Vec::new(),
        map: Map {
            sent: cell(7),
            dirty: if is_source { cell(11) } else { Vec::new() },
            dirty_per_second: if is_source { cell(13) } else { Vec::new() },
            rated_pages: of_source(migration.memory.pages),
            ..Map::default()
        },
        ..after
    }
}

/// A state of this time in which disks are copied.
#[allow(dead_code)] // Not all tests that have this module use it.
pub(crate) fn disks_state(migration: &Migration, at_ms: u64) -> State {
    let after = precopy_state(migration, at_ms);
    State {
        phase: Phase::Disks,
        round: 0,
        done_pages: 0,
        total_pages: 0,
        rounds: Vec::new(),
        dirty_pages_per_second: None,
        time_left: None,
        converges: None,
        map: Map::default(),
        ..after
    }
}

/// An end with this status and reason.
pub(crate) fn end(exit_status: u8, reason: &str) -> End {
    End {
        at_ms: 5000,
        exit_status,
        reason: reason.into(),
        message: format!("it has ended: {reason}"),
        next: None,
        account: None,
    }
}
