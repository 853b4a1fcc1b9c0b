//! The JSON that programs read: every member, with its name and type.
#![allow(clippy::unwrap_used)] // a test's failure is the message

use hikkoshi_account::{Account, EngineInfo, Side, SourceQuit, State, Statistics};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ACCOUNT: &str = include_str!("account.json");
const STATE: &str = include_str!("state.json");

/// What is read of `text`, after it was written again as it was.
fn written_as_read<T: DeserializeOwned + Serialize>(text: &str) -> T {
    let expected: Value = serde_json::from_str(text).unwrap();
    let read: T = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), expected);
    read
}

#[test]
fn an_account_keeps_its_members() {
    let account: Account = written_as_read(ACCOUNT);
    assert_eq!((account.pages.urgent, account.bytes.disks), (3, None));
    assert_eq!(account.requests.request_stages_us.request_to_page.count, 18);
    assert!(!account.is_resumed());
}

#[test]
fn a_state_keeps_its_members() {
    let state: State = written_as_read(STATE);
    assert_eq!((state.requests.count, state.bytes.disks), (21, Some(15)));
    assert_eq!(state.switchover[0].step, "paused");
    assert!(state.stage.is_handed_over());
}

/// What is not there is left out.
#[test]
fn a_short_account_has_no_other_members() {
    let latency = json!({
        "count": 0, "mean": 0.0, "p50": 0.0, "p99": 0.0, "max": 0.0, "histogram": [],
    });
    let text = json!({
        "mode": "precopy", "guest_state": "running", "total_ms": 5.5, "downtime_ms": null,
        "switchover": [], "rounds": 1, "postcopy": false,
        "pages": {"precopy": 1, "zero": 2, "urgent": 0, "background": 0, "guest": 5},
        "bytes": {"precopy": 1, "urgent": 0, "background": 0, "device_state": 5},
        "outages": [],
        "request_latency_us": latency,
        "request_stages_us": {
            "fault_to_request": latency, "request_to_page": latency, "page_to_installed": latency,
        },
        "unmeasured_requests": 0, "faults": [],
    });
    written_as_read::<Account>(&text.to_string());
}

/// One object has what the engine and the program say.
#[test]
fn statistics_are_one_object() {
    let mut text: Value = serde_json::from_str(ACCOUNT).unwrap();
    let alone: Statistics = written_as_read(&text.to_string());
    assert_eq!((alone.engine, alone.quit, alone.auto), (None, None, None));
    let more = json!({
        "migration_id": "00ff", "side": "source", "pid": 1, "host": "host-a", "guest": "web",
        "peer": "host-b:7000", "started_unix_ms": 2, "resumed": false, "bandwidth": 3,
        "source_quit": false, "source_quit_error": "it hangs",
        "auto": {
            "chosen_mode": "hybrid", "reason": "it writes much",
            "downtime_ms": {"low": 1.0, "likely": 2.0, "high": null}, "total_ms": null,
        },
    });
    for (name, value) in more.as_object().unwrap() {
        text[name] = value.clone();
    }
    let all: Statistics = written_as_read(&text.to_string());
    let side = |engine: EngineInfo| (engine.side, engine.migration_id);
    assert_eq!(all.engine.map(side), Some((Side::Source, "00ff".into())));
    let quit = SourceQuit {
        source_quit: false,
        source_quit_error: Some("it hangs".into()),
    };
    assert_eq!(all.quit, Some(quit));
    assert_eq!(all.auto.unwrap().downtime_ms.unwrap().high, None);
}
