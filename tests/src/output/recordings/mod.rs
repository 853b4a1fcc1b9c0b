//! Recordings of migrations that were not made by engines: a small model of a guest and a link, for
//! tests of the pages that show recordings.
//!
//! The model sends cell by cell, in steps of 100 ms, which engines use as well. It is exact where
//! the pages are: numbers of pages add up, both sides agree, and the same case gives the same
//! recording each time.

mod interrupted;
mod latency;
mod model;

use hikkoshi_account::{Mode, Side, State, Statistics};
use hikkoshi_status::{End, Migration, Recorder, Recording};

pub use interrupted::GAP_MS;
pub use latency::Latencies;
use model::Model;

/// A migration to record.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCase {
    /// The guest's name.
    pub guest: &'static str,
    /// How it is moved.
    pub mode: Mode,
    /// Cells of the map.
    pub cells: u64,
    /// Pages of a cell.
    pub cell_pages: u64,
    /// Pages that the link sends in 100 ms.
    pub link_pages: u64,
    /// Pages that the guest dirties per second in a hot cell. Two neighbours in 40
    /// cells are hot.
    pub hot_rate: u64,
    /// Whether the links are lost for two seconds in post-copy.
    pub outage: bool,
    /// How it ends.
    pub ending: Ending,
}

/// How a recorded migration ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Every page has arrived.
    Moved,
    /// The source is cancelled in pre-copy, after so many steps.
    Cancelled(u64),
    /// The destination's QEMU ends in post-copy, when half of the missing pages have arrived.
    Lost,
}

/// Everything that engines record of one migration: its states in order, on both sides.
#[derive(Debug, Clone)]
pub struct RecordedMigration {
    /// What is moved, as the source says.
    pub source: Migration,
    /// What is moved, as the destination says.
    pub destination: Migration,
    /// The states of both sides, one every 100 ms.
    pub states: Vec<(State, State)>,
    /// How it ended at the source.
    pub source_end: End,
    /// How it ended at the destination.
    pub destination_end: End,
}

/// The number of the migration of a case, made of the guest's name: the same each time.
fn id(guest: &str) -> String {
    let hash = guest.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}{:016x}", hash.rotate_left(17))
}

impl RecordedCase {
    /// A guest of 4 GiB on a link of 10 Gbit/s, by `mode`.
    pub fn new(guest: &'static str, mode: Mode) -> Self {
        Self {
            guest,
            mode,
            cells: 515,
            cell_pages: 2048,
            link_pages: 24_000,
            hot_rate: 900,
            outage: false,
            ending: Ending::Moved,
        }
    }

    /// Runs the model.
    pub fn record(&self) -> RecordedMigration {
        Model::new(self, id(self.guest)).run()
    }
}

impl RecordedMigration {
    /// The recording of a side when all has ended.
    pub fn recording(&self, side: Side) -> Recording {
        let mut recorder = self.recorder(side);
        for state in self.states_of(side) {
            if state.at_ms == 400 {
                recorder.notice(
                    state.at_ms,
                    "the guest has 2 vCPUs; links: 1 urgent, 4 background",
                );
            }
            recorder.add(state.clone());
        }
        recorder.end(self.end_of(side).clone());
        recorder.recording().clone()
    }

    /// The recorder of a side, without states.
    pub fn recorder(&self, side: Side) -> Recorder {
        Recorder::new(match side {
            Side::Source => self.source.clone(),
            Side::Destination => self.destination.clone(),
        })
    }

    /// The states of a side, in order.
    pub fn states_of(&self, side: Side) -> impl Iterator<Item = &State> {
        self.states
            .iter()
            .map(move |(source, destination)| match side {
                Side::Source => source,
                Side::Destination => destination,
            })
    }

    /// How it ended at a side.
    pub fn end_of(&self, side: Side) -> &End {
        match side {
            Side::Source => &self.source_end,
            Side::Destination => &self.destination_end,
        }
    }
}

/// The end of a side.
fn end(at_ms: u64, status: u8, reason: &str, message: &str, next: Option<&str>) -> End {
    End {
        at_ms,
        exit_status: status,
        reason: reason.to_owned(),
        message: message.to_owned(),
        next: next.map(str::to_owned),
        account: None,
    }
}

/// A result, of which the pages read these members.
fn account(rounds: u32, downtime_ms: f64, likely_downtime_ms: f64) -> Box<Statistics> {
    let text = include_str!("../../../../crates/account/tests/account.json");
    let mut result: Box<Statistics> = serde_json::from_str(text).unwrap();
    let account = &mut result.account;
    account.rounds = rounds;
    account.downtime_ms = Some(downtime_ms);
    account.likely_downtime_ms = Some(likely_downtime_ms);
    result
}
