//! A recording from the statistics of a migration (`--json`). They have no history, and the
//! recording says what is not known.

use hikkoshi_account::{Account, Bytes, GuestAt, Phase, Side, Stage, State, Statistics};
use hikkoshi_handover::{DestinationStage, SourceStage};
use hikkoshi_status::{End, Migration, Recording, Unknown};
use serde::Deserialize;
use serde_json::Value;

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
    Ok(with_statistics(of, serde_json::from_value(value)?))
}

/// The run has only said how it ended.
fn without_statistics(of: Source<'_>, failure: Failure) -> Recording {
    Recording {
        end: Some(End {
            at_ms: 0,
            exit_status: failure.exit_status,
            reason: failure.reason,
            message: failure.message,
            next: failure.next,
            account: None,
        }),
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
        ..Recording::new(migration(of, None))
    }
}

fn with_statistics(of: Source<'_>, statistics: Statistics) -> Recording {
    let migration = migration(of, Some(&statistics));
    let account = &statistics.account;
    let mut unknown = vec![Unknown::Map];
    if statistics.engine.is_none() {
        unknown.extend([Unknown::Side, Unknown::Engine, Unknown::Began]);
    }
    // All times of a recording are those of its engine, since it began.
    let lasted = account.engine_ms.unwrap_or(account.total_ms);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates.
    let at_ms = lasted as u64;
    Recording {
        state: Some(state(account, at_ms, migration.side)),
        end: Some(End {
            at_ms,
            exit_status: 0,
            reason: "moved".to_owned(),
            message: "the guest is at the destination".to_owned(),
            next: None,
            account: Some(Box::new(statistics)),
        }),
        unknown,
        ..Recording::new(migration)
    }
}

/// What was moved, as far as it is known.
fn migration(of: Source<'_>, statistics: Option<&Statistics>) -> Migration {
    let engine = statistics.and_then(|known| known.engine.clone());
    let pages = statistics.map_or(0, |known| known.account.pages.guest);
    // Files that do not have the number are different migrations, as far as is known.
    let mut migration = match engine {
        Some(engine) => Migration::from(engine),
        None => Migration::new(of.id, Side::Source, of.name),
    };
    if migration.guest.is_empty() {
        of.name.clone_into(&mut migration.guest);
    }
    migration.mode = statistics.map(|known| known.account.mode);
    // One cell: the map is not known.
    (migration.memory.pages, migration.memory.cell_pages) = (pages, pages.max(1));
    migration
}

fn state(account: &Account, at_ms: u64, side: Side) -> State {
    let source = Stage::Source(SourceStage::Done);
    let destination = Stage::Destination(DestinationStage::Complete);
    let (stage, peer_stage) = match side {
        Side::Source => (source, destination),
        Side::Destination => (destination, source),
    };
    State {
        at_ms,
        phase: match account.postcopy {
            true => Phase::Postcopy,
            false => Phase::Switchover,
        },
        round: account.rounds,
        stage,
        peer_stage,
        guest_at: GuestAt::Destination,
        pages: account.pages,
        bytes: Bytes {
            disks: Some(account.disk_bytes.unwrap_or(0)),
            ..account.bytes
        },
        compression: account.compression,
        repeats: account.repeats,
        disks: account.disks.clone(),
        missing_pages: account.postcopy.then_some(0),
        requests: account.requests.request_latency_us.clone(),
        downtime_ms: account.downtime_ms.filter(|ms| *ms > 0.0),
        likely_downtime_ms: account.likely_downtime_ms,
        switchover: account.switchover.clone(),
        rounds: account.rounds_detail.clone(),
        outages: account.outages.clone(),
        ..State::new(side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A result that does not say whose it is.
    fn result() -> Value {
        let latency = json!({
            "count": 0, "mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0, "histogram": [],
        });
        json!({
            "mode": "precopy", "guest_state": "running", "total_ms": 1500.5, "downtime_ms": 8.5,
            "switchover": [], "rounds": 0, "postcopy": false,
            "pages": {"precopy": 10, "zero": 20, "urgent": 0, "background": 0, "guest": 30},
            "bytes": {"precopy": 100, "urgent": 0, "background": 0, "device_state": 5},
            "outages": [],
            "request_latency_us": latency,
            "request_stages_us": {
                "fault_to_request": latency, "request_to_page": latency,
                "page_to_installed": latency,
            },
            "unmeasured_requests": 0, "faults": [],
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
    fn whose_result_it_is_may_be_unknown() {
        let recording = read(result());
        let unknown = [Unknown::Map, Unknown::Side, Unknown::Engine, Unknown::Began];
        assert_eq!(recording.unknown, unknown);
        assert_eq!(recording.migration.guest, "web");
        assert_eq!(recording.state.unwrap().repeats, None);
    }

    /// The total time is that of all engines.
    #[test]
    fn the_times_of_a_resumed_migration_are_those_of_its_last_engine() {
        let mut value = result();
        let engine = json!({
            "migration_id": "00ff", "side": "destination", "pid": 1, "host": "host-b",
            "guest": "db", "peer": "host-a", "started_unix_ms": 1_000_000, "resumed": true,
        });
        for (name, member) in engine.as_object().unwrap() {
            value[name] = member.clone();
        }
        value["total_ms"] = 90_000.5.into();
        value["engine_ms"] = 4_000.5.into();
        value["outages"] = json!([{ "from_ms": 0, "to_ms": 900 }]);
        let recording = read(value);
        assert_eq!(recording.unknown, [Unknown::Map]);
        let (end, state) = (recording.end.unwrap(), recording.state.unwrap());
        assert_eq!((end.at_ms, state.at_ms), (4_000, 4_000));
        assert_eq!(state.outages[0].to_ms, Some(900));
        assert_eq!(state.stage.name(), "complete");
        let migration = recording.migration;
        assert_eq!(migration.started_unix_ms, 1_000_000);
        assert_eq!(
            (&*migration.guest, migration.side),
            ("db", Side::Destination)
        );
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
