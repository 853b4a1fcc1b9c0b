//! A recording from the statistics of a migration (`--json`): they have no history.

use hikkoshi_status::{
    Bytes, End, GuestAt, LatencyBucket, Map, Memory, Migration, Pages, Phase, Recording, Requests,
    Side, State, Step, VERSION,
};
use serde::Deserialize;
use serde_json::Value;

/// The members of a result that a report uses (`docs/json.md`).
#[derive(Debug, Deserialize)]
struct Statistics {
    mode: String,
    total_ms: f64,
    downtime_ms: f64,
    #[serde(default)]
    switchover: Vec<SwitchoverStep>,
    #[serde(default)]
    rounds: u32,
    postcopy: bool,
    pages: SentPages,
    bytes: SentBytes,
    request_latency_us: Latency,
}

#[derive(Debug, Deserialize)]
struct SwitchoverStep {
    step: String,
    at_ms: f64,
}

#[derive(Debug, Deserialize)]
struct SentPages {
    precopy: u64,
    zero: u64,
    urgent: u64,
    background: u64,
    guest: u64,
}

#[derive(Debug, Deserialize)]
struct SentBytes {
    precopy: u64,
    urgent: u64,
    background: u64,
    device_state: u64,
}

#[derive(Debug, Deserialize)]
struct Latency {
    count: u64,
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
    histogram: Vec<LatencyBucket>,
}

/// A recording of the migration that is called `name`.
pub(super) fn recording(name: &str, value: Value) -> Result<Recording, serde_json::Error> {
    let statistics: Statistics = Statistics::deserialize(&value)?;
    // At the source there are rounds or, without pre-copy, no measurements of its own.
    let side = match statistics.rounds > 0 || value.get("asynchronous_faults").is_some() {
        true => Side::Source,
        false => Side::Destination,
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates.
    let at_ms = statistics.total_ms as u64;
    let (stage, peer_stage) = match side {
        Side::Source => ("done", "complete"),
        Side::Destination => ("complete", "done"),
    };
    let memory = Memory {
        pages: statistics.pages.guest,
        page_bytes: 4096,
        cell_pages: statistics.pages.guest.max(1),
        blocks: Vec::new(),
    };
    Ok(Recording {
        version: VERSION,
        migration: Migration {
            // Files are different migrations, as far as is known.
            id: format!("file:{name}"),
            side,
            pid: 0,
            host: String::new(),
            guest: name.to_owned(),
            peer: String::new(),
            mode: statistics.mode.clone(),
            started_unix_ms: 0,
            max_downtime_ms: None,
            bandwidth: None,
            resumed: false,
            memory,
        },
        samples: Vec::new(),
        frames: Vec::new(),
        notices: Vec::new(),
        state: Some(state(statistics, at_ms, stage, peer_stage)),
        end: Some(End {
            at_ms,
            exit_status: 0,
            reason: "moved".to_owned(),
            message: "the guest is at the destination".to_owned(),
            next: None,
            account: Some(value),
        }),
    })
}

fn state(statistics: Statistics, at_ms: u64, stage: &str, peer_stage: &str) -> State {
    let (pages, bytes) = (&statistics.pages, &statistics.bytes);
    let latency = statistics.request_latency_us;
    State {
        at_ms,
        phase: match statistics.postcopy {
            true => Phase::Postcopy,
            false => Phase::Switchover,
        },
        round: statistics.rounds,
        done_pages: 0,
        total_pages: 0,
        stage: stage.to_owned(),
        peer_stage: peer_stage.to_owned(),
        guest_at: GuestAt::Destination,
        pages: Pages {
            precopy: pages.precopy,
            zero: pages.zero,
            urgent: pages.urgent,
            background: pages.background,
            again: 0,
        },
        bytes: Bytes {
            precopy: bytes.precopy,
            urgent: bytes.urgent,
            background: bytes.background,
            device_state: bytes.device_state,
        },
        bytes_per_second: 0.0,
        dirty_pages_per_second: None,
        limits: None,
        time_left: None,
        missing_pages: statistics.postcopy.then_some(0),
        waiting_pages: 0,
        requests: Requests {
            count: latency.count,
            mean_us: latency.mean,
            p50_us: latency.p50,
            p99_us: latency.p99,
            max_us: latency.max,
            histogram: latency.histogram,
        },
        downtime_ms: (statistics.downtime_ms > 0.0).then_some(statistics.downtime_ms),
        switchover: statistics
            .switchover
            .into_iter()
            .map(|step| Step {
                step: step.step,
                after_pause_ms: step.at_ms,
            })
            .collect(),
        rounds: Vec::new(),
        outages: Vec::new(),
        map: Map::default(),
    }
}
