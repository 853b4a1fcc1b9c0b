//! A recording from the statistics of a migration (`--json`). They have no history. Those of older
//! programs lack more, and the recording says what is not known.

use hikkoshi_status::{
    Bytes, DiskCopy, End, GuestAt, LatencyBucket, Map, Memory, Migration, Outage, Pages, Phase,
    Recording, Repeats, Requests, Round, Side, State, Step, Unknown, VERSION,
};
use serde::Deserialize;
use serde_json::Value;

/// The members of a result that a report uses (`docs/json.md`).
#[derive(Debug, Deserialize)]
struct Statistics {
    mode: String,
    total_ms: f64,
    /// After `--resume`.
    engine_ms: Option<f64>,
    downtime_ms: Option<f64>,
    likely_downtime_ms: Option<f64>,
    #[serde(default)]
    switchover: Vec<SwitchoverStep>,
    #[serde(default)]
    rounds: u32,
    postcopy: bool,
    pages: SentPages,
    bytes: SentBytes,
    request_latency_us: Latency,
    // Older programs do not write the rest.
    migration_id: Option<String>,
    side: Option<Side>,
    pid: Option<u32>,
    host: Option<String>,
    guest: Option<String>,
    peer: Option<String>,
    started_unix_ms: Option<u64>,
    #[serde(default)]
    resumed: bool,
    max_downtime_ms: Option<u64>,
    bandwidth: Option<u64>,
    repeats: Option<Repeats>,
    disks: Option<Vec<DiskCopy>>,
    disk_bytes: Option<u64>,
    rounds_detail: Option<Vec<Round>>,
    outages: Option<Vec<Outage>>,
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

/// What a result says of a run without statistics (`docs/json.md`).
#[derive(Debug, Deserialize)]
struct Failure {
    exit_status: u8,
    reason: String,
    message: String,
    next: Option<String>,
}

/// A file that a report is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    /// Another one for each file.
    pub(super) id: &'a str,
    /// What it is called, if it does not have the guest's name.
    pub(super) name: &'a str,
}

/// Members that only the source's result has.
const OF_SOURCE: [&str; 7] = [
    "asynchronous_faults",
    "auto",
    "drains",
    "requests_under_way",
    "source_private_bytes",
    "source_quit",
    "stale_pages",
];

/// Steps of the switchover that only one side has.
const SOURCE_STEPS: [&str; 2] = ["committed", "guest resumed"];
const DESTINATION_STEPS: [&str; 2] = ["device state loaded", "commit received"];

/// The recording of a result.
pub(super) fn recording(of: Source<'_>, value: Value) -> Result<Recording, serde_json::Error> {
    if let Some(error) = value.get("error") {
        let failure = Failure::deserialize(error)?;
        return Ok(without_statistics(of, failure));
    }
    if let Some(message) = value.get("moved") {
        // An earlier run has moved the guest.
        let failure = Failure {
            exit_status: 0,
            reason: "moved".to_owned(),
            message: String::deserialize(message)?,
            next: None,
        };
        return Ok(without_statistics(of, failure));
    }
    let statistics: Statistics = Statistics::deserialize(&value)?;
    Ok(with_statistics(of, statistics, value))
}

/// The run has only said how it ended.
fn without_statistics(of: Source<'_>, failure: Failure) -> Recording {
    Recording {
        version: VERSION,
        migration: migration(of, None),
        samples: Vec::new(),
        frames: Vec::new(),
        dirty_rates: None,
        notices: Vec::new(),
        state: None,
        end: Some(End {
            at_ms: 0,
            exit_status: failure.exit_status,
            reason: failure.reason,
            message: failure.message,
            next: failure.next,
            account: None,
        }),
        engines: Vec::new(),
        unknown: vec![
            Unknown::Side,
            Unknown::Engine,
            Unknown::Mode,
            Unknown::Began,
            Unknown::Duration,
            Unknown::Memory,
            Unknown::Map,
            Unknown::Outages,
            Unknown::Rounds,
        ],
    }
}

fn with_statistics(of: Source<'_>, statistics: Statistics, value: Value) -> Recording {
    let side = statistics.side.or_else(|| side(&statistics, &value));
    let mut migration = migration(of, Some(&statistics));
    let mut unknown = vec![Unknown::Map];
    let mut missing = |is_missing: bool, part| {
        if is_missing {
            unknown.push(part);
        }
    };
    missing(side.is_none(), Unknown::Side);
    missing(statistics.host.is_none(), Unknown::Engine);
    missing(statistics.started_unix_ms.is_none(), Unknown::Began);
    missing(statistics.outages.is_none(), Unknown::Outages);
    // It is left out if there are none.
    missing(
        statistics.rounds > 0 && statistics.rounds_detail.is_none(),
        Unknown::Rounds,
    );
    migration.side = side.unwrap_or(Side::Source);
    // All times of a recording are those of its engine, since it began.
    let lasted = statistics.engine_ms.unwrap_or(statistics.total_ms);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates.
    let at_ms = lasted as u64;
    Recording {
        version: VERSION,
        samples: Vec::new(),
        frames: Vec::new(),
        dirty_rates: None,
        notices: Vec::new(),
        state: Some(state(statistics, at_ms, migration.side)),
        end: Some(End {
            at_ms,
            exit_status: 0,
            reason: "moved".to_owned(),
            message: "the guest is at the destination".to_owned(),
            next: None,
            account: Some(value),
        }),
        engines: Vec::new(),
        migration,
        unknown,
    }
}

/// The side of a result that does not say it, if something in it tells.
fn side(statistics: &Statistics, value: &Value) -> Option<Side> {
    let has = |name: &str| value.get(name).is_some();
    let did = |steps: [&str; 2]| {
        let mut done = statistics.switchover.iter();
        done.any(|done| steps.contains(&done.step.as_str()))
    };
    if statistics.rounds > 0 || OF_SOURCE.iter().any(|name| has(name)) || did(SOURCE_STEPS) {
        return Some(Side::Source);
    }
    // A source that has sent pages in pre-copy has had rounds.
    let received = statistics.pages.precopy > 0;
    (received || has("faults_before_running") || did(DESTINATION_STEPS))
        .then_some(Side::Destination)
}

/// What was moved, as far as it is known.
fn migration(of: Source<'_>, statistics: Option<&Statistics>) -> Migration {
    let text = |text: fn(&Statistics) -> Option<&str>| {
        let known = statistics.and_then(text).filter(|text| !text.is_empty());
        known.map(str::to_owned)
    };
    Migration {
        // Files that do not have it are different migrations, as far as is known.
        id: text(|of| of.migration_id.as_deref()).unwrap_or_else(|| of.id.to_owned()),
        side: Side::Source,
        pid: statistics.and_then(|of| of.pid).unwrap_or_default(),
        host: text(|of| of.host.as_deref()).unwrap_or_default(),
        guest: text(|of| of.guest.as_deref()).unwrap_or_else(|| of.name.to_owned()),
        qmp: None,
        peer: text(|of| of.peer.as_deref()).unwrap_or_default(),
        mode: statistics.map_or_else(String::new, |of| of.mode.clone()),
        started_unix_ms: statistics
            .and_then(|of| of.started_unix_ms)
            .unwrap_or_default(),
        max_downtime_ms: statistics.and_then(|of| of.max_downtime_ms),
        bandwidth: statistics.and_then(|of| of.bandwidth),
        resumed: statistics.is_some_and(|of| of.resumed),
        memory: Memory {
            pages: statistics.map_or(0, |of| of.pages.guest),
            page_bytes: 4096,
            // One cell: the map is not known.
            cell_pages: statistics.map_or(1, |of| of.pages.guest.max(1)),
            blocks: Vec::new(),
        },
    }
}

fn state(statistics: Statistics, at_ms: u64, side: Side) -> State {
    let (pages, bytes) = (&statistics.pages, &statistics.bytes);
    let latency = statistics.request_latency_us;
    let (stage, peer_stage) = match side {
        Side::Source => ("done", "complete"),
        Side::Destination => ("complete", "done"),
    };
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
            again: statistics.repeats.map_or(0, |of| of.precopy.pages),
        },
        bytes: Bytes {
            precopy: bytes.precopy,
            urgent: bytes.urgent,
            background: bytes.background,
            device_state: bytes.device_state,
            disks: statistics.disk_bytes.unwrap_or_default(),
        },
        repeats: statistics.repeats,
        disks: statistics.disks.unwrap_or_default(),
        bytes_per_second: 0.0,
        dirty_pages_per_second: None,
        limits: None,
        time_left: None,
        converges: None,
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
        downtime_ms: statistics.downtime_ms.filter(|ms| *ms > 0.0),
        likely_downtime_ms: statistics.likely_downtime_ms,
        switchover: statistics
            .switchover
            .into_iter()
            .map(|step| Step {
                step: step.step,
                after_pause_ms: step.at_ms,
            })
            .collect(),
        rounds: statistics.rounds_detail.unwrap_or_default(),
        outages: statistics.outages.unwrap_or_default(),
        map: Map::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LATENCY: &str = r#"{"count":0,"mean":0.0,"p50":0.0,"p99":0.0,"max":0.0,"histogram":[]}"#;

    /// A result of a program that did not write more.
    fn old() -> Value {
        json!({
            "mode": "precopy", "guest_state": "running", "total_ms": 1500.5, "downtime_ms": 8.5,
            "switchover": [], "rounds": 0, "postcopy": false,
            "pages": {"precopy": 10, "zero": 20, "urgent": 0, "background": 0, "guest": 30},
            "bytes": {"precopy": 100, "urgent": 0, "background": 0, "device_state": 5},
            "request_latency_us": serde_json::from_str::<Value>(LATENCY).unwrap(),
        })
    }

    fn read(value: Value) -> Recording {
        let of = Source {
            id: "file:0",
            name: "web",
        };
        recording(of, value).unwrap()
    }

    #[test]
    fn what_an_old_result_lacks_is_unknown() {
        let mut value = old();
        value["rounds"] = 3.into();
        let recording = read(value);
        let unknown = [
            Unknown::Map,
            Unknown::Engine,
            Unknown::Began,
            Unknown::Outages,
            Unknown::Rounds,
        ];
        assert_eq!(recording.unknown, unknown);
        let state = recording.state.unwrap();
        assert_eq!((state.repeats, state.round), (None, 3));
        assert_eq!(recording.migration.guest, "web");
    }

    /// The total time is that of all engines.
    #[test]
    fn the_times_of_a_resumed_migration_are_those_of_its_last_engine() {
        let mut value = old();
        value["resumed"] = true.into();
        value["started_unix_ms"] = 1_000_000.into();
        value["total_ms"] = 90_000.5.into();
        value["engine_ms"] = 4_000.5.into();
        value["outages"] = json!([{ "from_ms": 0, "to_ms": 900 }]);
        let recording = read(value);
        let (end, state) = (recording.end.unwrap(), recording.state.unwrap());
        assert_eq!((end.at_ms, state.at_ms), (4_000, 4_000));
        assert_eq!(state.outages[0].to_ms, Some(900));
        assert_eq!(recording.migration.started_unix_ms, 1_000_000);
    }

    #[test]
    fn the_side_is_what_the_result_says_or_what_only_one_side_has() {
        let side = |changed: &[(&str, Value)]| {
            let mut value = old();
            for (name, member) in changed {
                value[*name] = member.clone();
            }
            let recording = read(value);
            let known = recording.knows(Unknown::Side);
            known.then_some(recording.migration.side)
        };
        let no_pages = json!({"precopy": 0, "zero": 0, "urgent": 0, "background": 9, "guest": 30});
        let step = |name: &str| json!([{ "step": name, "at_ms": 1.0 }]);
        assert_eq!(side(&[]), Some(Side::Destination), "it has received pages");
        assert_eq!(side(&[("rounds", 2.into())]), Some(Side::Source));
        assert_eq!(side(&[("pages", no_pages.clone())]), None);
        for (name, member, expected) in [
            ("side", json!("destination"), Side::Destination),
            ("asynchronous_faults", json!("off"), Side::Source),
            ("requests_under_way", json!(0), Side::Source),
            ("faults_before_running", json!([]), Side::Destination),
            ("switchover", step("guest resumed"), Side::Source),
            ("switchover", step("commit received"), Side::Destination),
        ] {
            let changed = [("pages", no_pages.clone()), (name, member)];
            assert_eq!(side(&changed), Some(expected), "{name}");
        }
    }

    #[test]
    fn a_failed_run_is_a_recording_of_its_end() {
        let end = json!({
            "exit_status": 1, "reason": "link", "guest": "source", "message": "no link",
            "next": "try again", "resume": null,
        });
        let recording = read(json!({ "error": end }));
        let end = recording.end.as_ref().unwrap();
        assert_eq!((end.exit_status, end.reason.as_str()), (1, "link"));
        assert_eq!(
            (end.message.as_str(), end.next.as_deref()),
            ("no link", Some("try again"))
        );
        assert_eq!(
            (
                recording.state.is_none(),
                recording.knows(Unknown::Duration)
            ),
            (true, false)
        );
        let moved = read(json!({ "moved": "it has moved" })).end.unwrap();
        assert_eq!(
            (moved.exit_status, moved.message.as_str()),
            (0, "it has moved")
        );
        assert!(recording_of(json!({ "error": {} })).is_err());
        assert!(recording_of(json!({ "moved": 1 })).is_err());
    }

    fn recording_of(value: Value) -> Result<Recording, serde_json::Error> {
        let of = Source { id: "a", name: "b" };
        recording(of, value)
    }
}
