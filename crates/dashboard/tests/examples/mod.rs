//! Migrations for tests, as an engine records them.

use hikkoshi_status::{
    Block, Bytes, Converges, End, GuestAt, LatencyBucket, Map, Memory, Migration, Outage, Pages,
    Phase, Requests, Side, State, TimeLeft,
};

/// A guest with this many cells of 2 MiB. `number` tells migrations apart, and orders them.
pub(crate) fn migration(side: Side, number: u32, cells: u64) -> Migration {
    let cell_pages = 512;
    Migration {
        id: format!("{number:08x}{:024}", 0),
        side,
        pid: 1000 + number,
        host: "host-a".into(),
        guest: "web".into(),
        peer: "host-b:7000".into(),
        mode: "hybrid".into(),
        started_unix_ms: 1_700_000_000_000 + u64::from(number) * 1000,
        max_downtime_ms: Some(300),
        bandwidth: None,
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

/// A state of this time in post-copy, in which each number is another one.
pub(crate) fn state(migration: &Migration, at_ms: u64) -> State {
    let cells = migration.memory.cells();
    let cell = |times: u64| (0..cells).map(|cell| (cell * times) % 512).collect();
    State {
        at_ms,
        phase: Phase::Postcopy,
        round: 3,
        done_pages: 256,
        total_pages: 1024,
        stage: match migration.side {
            Side::Source => "handed_over".into(),
            Side::Destination => "running".into(),
        },
        peer_stage: "running".into(),
        guest_at: GuestAt::Destination,
        pages: Pages {
            precopy: 1001,
            zero: 1002,
            urgent: 1003,
            background: 1004,
            again: 1005,
        },
        bytes: Bytes {
            precopy: 2001,
            urgent: 2002,
            background: 2003,
            device_state: 2004,
        },
        disks: Vec::new(),
        repeats: None,
        bytes_per_second: 3001.5,
        dirty_pages_per_second: Some(3002.5),
        limits: None,
        time_left: Some(TimeLeft {
            low_s: 1.5,
            likely_s: 2.5,
            high_s: None,
        }),
        converges: Some(Converges::No),
        missing_pages: Some(4001),
        waiting_pages: 4002,
        requests: Requests {
            count: 110,
            mean_us: 200.0,
            p50_us: 60.0,
            p99_us: 900.0,
            max_us: 1900.0,
            histogram: [(8, 10), (64, 50), (128, 0), (1024, 40), (2048, 10)]
                .map(|(le_us, count)| LatencyBucket { le_us, count })
                .to_vec(),
        },
        downtime_ms: Some(12.5),
        switchover: Vec::new(),
        rounds: Vec::new(),
        outages: vec![
            Outage {
                from_ms: 10,
                to_ms: Some(20),
            },
            Outage {
                from_ms: at_ms.saturating_sub(1500),
                to_ms: None,
            },
        ],
        map: Map {
            sent: cell(7),
            dirty: cell(11),
            dirty_per_second: cell(13),
            missing: cell(17),
            waiting: cell(19),
            by_request: cell(23),
            background: cell(29),
        },
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
