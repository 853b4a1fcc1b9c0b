//! What is known about one entry of the status folder.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hikkoshi_status::{Map, Record, Recorder, Recording, Side};

/// How long to wait before an engine that could not be followed is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// How often an entry may be missing in the folder before it is forgotten: an engine that ends
/// replaces its socket by a file.
const ABSENT: u32 = 4;

/// What is known about one entry of the status folder.
#[derive(Debug, Default)]
pub(crate) struct Known {
    content: Content,
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
    /// Its end was counted.
    pub(super) is_counted: bool,
}

/// The recording of a migration.
#[derive(Debug, Default)]
enum Content {
    /// Nothing was read yet, or it cannot be read.
    #[default]
    Nothing,
    /// It is followed, or was.
    Live(Box<Recorder>),
    /// It was read from the file of an ended migration.
    File {
        /// The whole recording as JSON: many megabytes less than the values.
        json: Bytes,
        /// The recording without samples, frames and maps.
        short: Box<Recording>,
    },
}

impl Known {
    /// The recording. Samples, frames and maps of an ended one are left out.
    pub(crate) fn short(&self) -> Option<&Recording> {
        match &self.content {
            Content::Nothing => None,
            Content::Live(recorder) => Some(recorder.recording()),
            Content::File { short, .. } => Some(short),
        }
    }

    /// The whole recording as JSON.
    pub(crate) fn json(&self) -> Option<Bytes> {
        match &self.content {
            Content::Nothing => None,
            Content::Live(recorder) => Some(to_json(recorder.recording())),
            Content::File { json, .. } => Some(json.clone()),
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

    /// Whether it was read from the file of an ended migration.
    pub(super) fn is_file(&self) -> bool {
        matches!(self.content, Content::File { .. })
    }

    /// Adds a record of its engine. Returns whether that changed something.
    pub(super) fn apply(&mut self, record: Record) -> bool {
        match (&mut self.content, record) {
            // The file has everything.
            (Content::File { .. }, _) => return false,
            (Content::Live(recorder), record) => recorder.apply(record),
            (content @ Content::Nothing, Record::Recording(recording)) => {
                *content = Content::Live(Box::new(Recorder::following(*recording)));
            }
            (Content::Nothing, _) => return false,
        }
        self.lost = None;
        true
    }

    /// The migration has ended, and this is its file.
    pub(super) fn end(&mut self, mut recording: Recording) {
        let json = to_json(&recording);
        recording.samples = Vec::new();
        recording.frames = Vec::new();
        if let Some(state) = &mut recording.state {
            state.map = Map::default();
        }
        self.content = Content::File {
            json,
            short: Box::new(recording),
        };
        self.lost = None;
    }

    /// Nothing more is known. Returns whether that is new.
    pub(super) fn lose(&mut self, text: &str) -> bool {
        self.retry = Some(Instant::now() + RETRY);
        if self.is_file() || self.lost.as_deref() == Some(text) {
            return false;
        }
        self.lost = Some(text.to_owned());
        true
    }

    /// The folder was listed, with or without this entry. Returns whether to forget it.
    pub(super) fn listed(&mut self, is_present: bool) -> bool {
        self.absent = if is_present { 0 } else { self.absent + 1 };
        self.absent >= ABSENT && !self.is_followed
    }

    /// Side and reason of an end that was not counted before.
    pub(super) fn count_end(&mut self) -> Option<(Side, String)> {
        if self.is_counted || !self.is_over() {
            return None;
        }
        let recording = self.short()?;
        let reason = match &recording.end {
            Some(end) => end.reason.clone(),
            None => "engine_lost".to_owned(),
        };
        let side = recording.migration.side;
        self.is_counted = true;
        Some((side, reason))
    }
}

fn to_json(recording: &Recording) -> Bytes {
    // A recording has no maps with other keys than strings, the only way to fail.
    serde_json::to_vec(recording).unwrap_or_default().into()
}
