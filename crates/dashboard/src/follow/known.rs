//! What is known about one entry of the status folder.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hikkoshi_account::{Map, Side};
use hikkoshi_status::{Continued, Recorder, Recording, StatusRecord};

use super::events::recording_event;

/// How long to wait before an engine that could not be followed is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// How often an entry may be missing in the folder before it is forgotten.
const MAX_ABSENCES: u32 = 4;

/// What is known about one entry of the status folder.
#[derive(Debug, Default)]
pub(crate) struct Known {
    content: Content,
    /// How its records are joined to the recording of the engine before.
    continued: Option<Continued>,
    /// Why nothing more is known: its engine was killed, or it cannot be read.
    lost: Option<String>,
    /// A thread follows it.
    pub(super) is_followed: bool,
    /// When the file that was read, or could not be read, was written.
    pub(super) file: Option<SystemTime>,
    /// Not to be followed before.
    pub(super) retry: Option<Instant>,
    /// How often the folder was listed without it.
    absent: u32,
    /// It was in the folder before this process listed it.
    is_old: bool,
    /// Its engine was followed.
    was_followed: bool,
    /// Its end was counted, or is not to be counted.
    is_counted: bool,
    /// That its engine was killed was counted.
    is_loss_counted: bool,
}

/// The recording of a migration.
#[derive(Debug, Default)]
enum Content {
    /// Nothing was read yet, or it cannot be read.
    #[default]
    Nothing,
    /// It is followed, or was.
    Live(Box<Recorder>),
    /// It was read from a file.
    File {
        /// The whole recording as JSON: many megabytes less than the values.
        json: Bytes,
        /// The recording without samples, frames and maps.
        short: Box<Recording>,
        /// That as an event.
        event: Bytes,
    },
}

/// A whole recording, to look at without a lock.
#[derive(Debug)]
pub(crate) enum Whole {
    /// As it was read from a file.
    Json(Bytes),
    /// As it was followed.
    Live(Box<Recording>),
}

impl Whole {
    /// It as JSON.
    pub(crate) fn into_json(self) -> Bytes {
        match self {
            Self::Json(json) => json,
            Self::Live(recording) => to_json(&recording),
        }
    }

    /// Its values.
    pub(crate) fn into_recording(self) -> Option<Recording> {
        match self {
            // It was made here.
            Self::Json(json) => serde_json::from_slice(&json).ok(),
            Self::Live(recording) => Some(*recording),
        }
    }
}

impl Known {
    /// `is_old`: it was in the folder before this process listed it.
    pub(super) fn new(is_old: bool) -> Self {
        Self {
            is_old,
            ..Self::default()
        }
    }

    /// The recording. Samples, frames and maps of one that was read from a file are left out.
    pub(crate) fn short(&self) -> Option<&Recording> {
        match &self.content {
            Content::Nothing => None,
            Content::Live(recorder) => Some(recorder.recording()),
            Content::File { short, .. } => Some(short),
        }
    }

    /// The whole recording.
    pub(crate) fn whole(&self) -> Option<Whole> {
        match &self.content {
            Content::Nothing => None,
            Content::Live(recorder) => Some(Whole::Live(Box::new(recorder.recording().clone()))),
            Content::File { json, .. } => Some(Whole::Json(json.clone())),
        }
    }

    /// The recording without samples and frames, as an event.
    pub(super) fn event(&self, name: &str) -> Option<Bytes> {
        match &self.content {
            Content::Nothing => None,
            Content::Live(recorder) => Some(recording_event(
                name,
                &without_history(recorder.recording()),
            )),
            Content::File { event, .. } => Some(event.clone()),
        }
    }

    /// Why nothing more is known.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Whether the migration has ended, or its engine has.
    pub(crate) fn is_over(&self) -> bool {
        self.lost.is_some() || self.short().is_some_and(|it| it.end.is_some())
    }

    /// Whether it was read from the file of an ended migration: nothing can follow.
    pub(super) fn is_final(&self) -> bool {
        matches!(&self.content, Content::File { short, .. } if short.end.is_some())
    }

    /// Whether its engine sends records.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.content, Content::Live(_)) && !self.is_over()
    }

    /// The first record of its engine. It is joined already, as further ones are to be.
    pub(super) fn begin(&mut self, recording: Recording, continued: Option<Continued>) {
        self.content = Content::Live(Box::new(Recorder::following(recording)));
        self.continued = continued;
        self.was_followed = true;
        self.lost = None;
    }

    /// Adds a further record of its engine. Returns it as it was joined to what is known. `None`:
    /// it changes nothing.
    pub(super) fn apply(&mut self, record: StatusRecord) -> Option<StatusRecord> {
        let Content::Live(recorder) = &mut self.content else {
            return None;
        };
        let record = match &self.continued {
            Some(continued) => continued.record(record),
            None => record,
        };
        recorder.apply(record.clone());
        self.lost = None;
        Some(record)
    }

    /// Whether this file has something that is not known.
    pub(super) fn is_news(&self, recording: &Recording) -> bool {
        let Content::Live(recorder) = &self.content else {
            return true;
        };
        // What was followed is newer than the file of a killed engine, as a rule.
        let known_ms = self.own_ms(recorder.recording().last_ms());
        recording.end.is_some() || recording.last_ms() > known_ms
    }

    /// A time of the recording, as its engine counts it.
    fn own_ms(&self, at_ms: u64) -> u64 {
        let engine = self.short().and_then(|it| it.engines.last());
        at_ms.saturating_sub(engine.map_or(0, |engine| engine.begun_ms))
    }

    /// This was read from its file.
    pub(super) fn read(&mut self, name: &str, mut recording: Recording) {
        let json = to_json(&recording);
        recording.samples = Vec::new();
        recording.frames = Vec::new();
        if let Some(state) = &mut recording.state {
            state.map = Map::default();
        }
        let has_ended = recording.end.is_some();
        self.content = Content::File {
            json,
            event: recording_event(name, &recording),
            short: Box::new(recording),
        };
        if has_ended {
            self.lost = None;
        }
    }

    /// Nothing more is known. Returns whether that is new.
    pub(super) fn lose(&mut self, text: &str) -> bool {
        self.retry = Some(Instant::now() + RETRY);
        if self.is_final() || self.lost.as_deref() == Some(text) {
            return false;
        }
        self.lost = Some(text.to_owned());
        true
    }

    /// The folder was listed, with or without this entry. Returns whether to forget it.
    pub(super) fn listed(&mut self, is_present: bool) -> bool {
        self.absent = if is_present { 0 } else { self.absent + 1 };
        self.absent >= MAX_ABSENCES && !self.is_followed
    }

    /// If it has ended, that was before this process began to look: it is not counted.
    pub(super) fn ended_before(&mut self) {
        self.is_counted = self.is_final() && !self.was_followed;
    }

    /// Side and reason of an end that was not counted before.
    pub(super) fn count_end(&mut self) -> Option<(Side, String)> {
        let recording = self.short()?;
        let ended = (
            recording.migration.side,
            recording.end.as_ref()?.reason.clone(),
        );
        (!std::mem::replace(&mut self.is_counted, true)).then_some(ended)
    }

    /// The side of an engine that was killed while this process looked, and was not counted before.
    pub(super) fn count_loss(&mut self) -> Option<Side> {
        let side = self.short()?.migration.side;
        let is_new = self.was_followed || !self.is_old;
        (is_new && !std::mem::replace(&mut self.is_loss_counted, true)).then_some(side)
    }
}

/// A recording without samples and frames.
fn without_history(recording: &Recording) -> Recording {
    Recording {
        dirty_rates: recording.dirty_rates.clone(),
        notices: recording.notices.clone(),
        state: recording.state.clone(),
        end: recording.end.clone(),
        engines: recording.engines.clone(),
        unknown: recording.unknown.clone(),
        ..Recording::new(recording.migration.clone())
    }
}

fn to_json(recording: &Recording) -> Bytes {
    // A recording has no maps with other keys than strings, the only way to fail.
    serde_json::to_vec(recording).unwrap_or_default().into()
}
