//! Records for tests.

use super::*;
use hikkoshi_account::{Limits, Map, Mode, Side};

pub(crate) fn migration() -> Migration {
    Migration {
        id: "00112233445566778899aabbccddeeff".into(),
        side: Side::Source,
        pid: 4711,
        host: "host-a".into(),
        guest: "web".into(),
        qmp: None,
        peer: "host-b:7000".into(),
        mode: Some(Mode::Hybrid),
        started_unix_ms: 1_700_000_000_000,
        limits: Limits {
            max_downtime_ms: Some(300),
            bandwidth: None,
        },
        resumed: false,
        memory: Memory {
            pages: 1024,
            page_bytes: 4096,
            cell_pages: 512,
            blocks: vec![Block {
                id: "pc.ram".into(),
                first_page: 0,
                pages: 1024,
                guest: Vec::new(),
            }],
        },
    }
}

pub(crate) fn state(at_ms: u64) -> State {
    State {
        at_ms,
        phase: Phase::Precopy,
        round: 1,
        done_pages: 10,
        total_pages: 1024,
        map: Map {
            sent: vec![10, 0],
            ..Map::default()
        },
        ..State::new(Side::Source)
    }
}
