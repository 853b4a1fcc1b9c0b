//! Changes as Server-Sent Events (HTML standard, 9.2). JSON has no line breaks.

use std::sync::Arc;

use bytes::Bytes;
use hikkoshi_status::{Evacuation, Recording, StatusRecord};
use serde::Serialize;

use super::hosts::OtherHost;
use super::subscription::Event;

/// The data of an event.
#[derive(Debug, Default, Serialize)]
struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Body<'a>>,
    /// Samples and frames of the recording are left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    short: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evacuation: Option<&'a Evacuation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a OtherHost>,
}

/// What happened.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Record(&'a StatusRecord),
    Recording { recording: &'a Recording },
}

/// A recording without samples and frames.
pub(super) fn recording_event(name: &str, recording: &Recording) -> Bytes {
    text(
        "status",
        &Data {
            name: Some(name),
            record: Some(Body::Recording { recording }),
            short: true,
            ..Data::default()
        },
    )
}

/// A record of an engine.
pub(super) fn status_event(name: &str, record: &StatusRecord) -> Event {
    let is_state = matches!(record, StatusRecord::State(_));
    let data = Data {
        name: Some(name),
        record: Some(Body::Record(record)),
        ..Data::default()
    };
    Event {
        state_of: is_state.then(|| Arc::from(name)),
        text: text("status", &data),
    }
}

/// Nothing more is known about a migration.
pub(super) fn lost_event(name: &str, why: &str) -> Event {
    let data = Data {
        name: Some(name),
        text: Some(why),
        ..Data::default()
    };
    Event::of_text(text("lost", &data))
}

/// A migration is not in the folder any more.
pub(super) fn gone_event(name: &str) -> Event {
    let data = Data {
        name: Some(name),
        ..Data::default()
    };
    Event::of_text(text("gone", &data))
}

/// The evacuation of this host. Without one: there is none any more.
pub(super) fn evacuation_event(evacuation: Option<&Evacuation>) -> Event {
    let data = Data {
        evacuation,
        ..Data::default()
    };
    Event::of_text(text("evacuation", &data))
}

/// What another host has answered.
pub(super) fn host_event(host: &OtherHost) -> Event {
    let data = Data {
        host: Some(host),
        ..Data::default()
    };
    Event {
        // Entries have no spaces.
        state_of: Some(format!("host {}", host.asked).into()),
        text: text("host", &data),
    }
}

/// Everything that was known was sent.
pub(super) fn all_sent_event() -> Event {
    Event::of_text(text("all-sent", &Data::default()))
}

fn text(kind: &str, data: &Data<'_>) -> Bytes {
    let mut text = format!("event: {kind}\ndata: ").into_bytes();
    // Records have no maps with other keys than strings, the only way to fail.
    let _ = serde_json::to_writer(&mut text, data);
    text.extend_from_slice(b"\n\n");
    text.into()
}
