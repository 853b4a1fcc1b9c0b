//! All migrations of the status folder, and who is informed about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use hikkoshi_status::{Record, Recording, Side};
use serde::Serialize;

use super::known::Known;
use super::subscription::{Event, Queue, Subscription};

/// The most sockets that are followed at once.
const FOLLOWED: usize = 32;

/// The most different reasons that ends are counted by; others are counted together.
const REASONS: usize = 64;

/// All migrations of the status folder. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Migrations(Arc<Mutex<State>>);

/// What is known.
#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Arc<str>, Known>,
    subscribers: Vec<Arc<Queue>>,
    ended: BTreeMap<(Side, String), u64>,
    folder_problem: Option<String>,
}

/// What is known, to look at.
#[derive(Debug)]
pub(crate) struct View<'a> {
    /// The migrations, by the names of their entries.
    pub(crate) entries: &'a BTreeMap<Arc<str>, Known>,
    /// Ends that were seen, by side and reason.
    pub(crate) ended: &'a BTreeMap<(Side, String), u64>,
    /// Subscribers.
    pub(crate) subscribers: usize,
    /// Whether the status folder can be read.
    pub(crate) folder_is_readable: bool,
}

impl Migrations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything. Nothing changes meanwhile.
    pub(crate) fn view<T>(&self, look: impl FnOnce(View<'_>) -> T) -> T {
        let mut state = self.lock();
        state.forget_closed();
        look(View {
            entries: &state.entries,
            ended: &state.ended,
            subscribers: state.subscribers.len(),
            folder_is_readable: state.folder_problem.is_none(),
        })
    }

    /// A subscriber: gets all recordings, then all changes. `None`: there are `most` others.
    pub(crate) fn subscribe(&self, most: usize) -> Option<Subscription> {
        let mut state = self.lock();
        state.forget_closed();
        if state.subscribers.len() >= most {
            return None;
        }
        let mut events = Vec::new();
        for (name, known) in &state.entries {
            events.extend(known.json().map(|json| recording_event(name, &json)));
            events.extend(known.lost().map(|text| lost_event(name, text)));
        }
        let queue = Arc::new(Queue::default());
        queue.begin(events);
        state.subscribers.push(Arc::clone(&queue));
        Some(Subscription(queue))
    }

    /// The status folder can be read, or not.
    pub(super) fn set_folder_problem(&self, problem: Option<String>) {
        let mut state = self.lock();
        if state.folder_problem != problem {
            if let Some(problem) = &problem {
                tracing::warn!(%problem, "the migrations of this host cannot be listed");
            }
            state.folder_problem = problem;
        }
    }

    /// A socket is in the folder. Returns whether the caller must follow it, and report the end of
    /// that by [`not_followed`](Self::not_followed).
    pub(super) fn must_follow(&self, name: &str) -> bool {
        let mut state = self.lock();
        let followed = state.entries.values().filter(|known| known.is_followed);
        let is_full = followed.count() >= FOLLOWED;
        let known = state.known(name);
        let waits = known.retry.is_some_and(|retry| Instant::now() < retry);
        if is_full || waits || known.is_followed || known.is_file() {
            return false;
        }
        known.is_followed = true;
        true
    }

    /// A socket is not followed any more.
    pub(super) fn not_followed(&self, name: &str) {
        if let Some(known) = self.lock().entries.get_mut(name) {
            known.is_followed = false;
        }
    }

    /// A file that was written at this time is in the folder. Returns whether it is to be read.
    pub(super) fn must_read(&self, name: &str, written: SystemTime) -> bool {
        let mut state = self.lock();
        state.known(name).file.replace(written) != Some(written)
    }

    /// An engine has sent a record. Returns whether it is still of interest.
    pub(crate) fn apply(&self, name: &str, record: Record) -> bool {
        let mut state = self.lock();
        // Serialized once for all subscribers, and only if there are some.
        let event = match &record {
            Record::Recording(_) => None,
            _ if state.subscribers.is_empty() => None,
            record => status_event(name, record),
        };
        let is_recording = matches!(record, Record::Recording(_));
        if !state.known(name).apply(record) {
            return false;
        }
        if is_recording {
            state.publish_recording(name);
        } else {
            state.publish(event);
        }
        state.count_end(name);
        true
    }

    /// A migration has ended, and this is its file.
    pub(super) fn end(&self, name: &str, recording: Recording) {
        let mut state = self.lock();
        state.known(name).end(recording);
        state.publish_recording(name);
        state.count_end(name);
    }

    /// Nothing more is known about a migration.
    pub(crate) fn lose(&self, name: &str, text: &str) {
        let mut state = self.lock();
        if state.known(name).lose(text) {
            state.publish(Some(lost_event(name, text)));
            state.count_end(name);
        }
    }

    /// The folder has these entries. Others are forgotten.
    pub(crate) fn listed(&self, names: &BTreeSet<&str>) {
        let mut state = self.lock();
        let entries = state.entries.iter_mut();
        let gone: Vec<_> = entries
            .filter_map(|(name, known)| {
                let is_present = names.contains(&**name);
                known.listed(is_present).then(|| Arc::clone(name))
            })
            .collect();
        for name in gone {
            state.entries.remove(&name);
            state.publish(Some(gone_event(&name)));
        }
    }
}

impl State {
    fn known(&mut self, name: &str) -> &mut Known {
        self.entries.entry(Arc::from(name)).or_default()
    }

    fn forget_closed(&mut self) {
        self.subscribers.retain(|queue| !queue.is_closed());
    }

    fn publish(&mut self, event: Option<Event>) {
        let Some(event) = event else { return };
        self.subscribers.retain(|queue| {
            queue.push(&event);
            !queue.is_closed()
        });
    }

    fn publish_recording(&mut self, name: &str) {
        if self.subscribers.is_empty() {
            return;
        }
        let json = self.known(name).json();
        self.publish(json.map(|json| recording_event(name, &json)));
    }

    fn count_end(&mut self, name: &str) {
        let Some((side, reason)) = self.known(name).count_end() else {
            return;
        };
        let is_known = self.ended.contains_key(&(side, reason.clone()));
        let reason = match is_known || self.ended.len() < REASONS {
            true => reason,
            false => "other".to_owned(),
        };
        *self.ended.entry((side, reason)).or_default() += 1;
    }
}

/// The data of an event.
#[derive(Serialize)]
struct Data<'a, R> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// The whole recording of a migration, which is JSON already.
fn recording_event(name: &str, recording: &[u8]) -> Event {
    // Names of entries have letters, digits and hyphens only.
    let begin = format!("event: status\ndata: {{\"name\":\"{name}\",\"record\":{{\"recording\":");
    Event {
        state_of: None,
        text: [begin.as_bytes(), recording, b"}}\n\n"].concat().into(),
    }
}

fn status_event(name: &str, record: &Record) -> Option<Event> {
    let state_of = matches!(record, Record::State(_)).then(|| Arc::from(name));
    let record = Some(record);
    Some(event(
        "status",
        state_of,
        &Data {
            name,
            record,
            text: None,
        },
    ))
}

fn lost_event(name: &str, text: &str) -> Event {
    let text = Some(text);
    event(
        "lost",
        None,
        &Data::<()> {
            name,
            record: None,
            text,
        },
    )
}

fn gone_event(name: &str) -> Event {
    event(
        "gone",
        None,
        &Data::<()> {
            name,
            record: None,
            text: None,
        },
    )
}

/// An event in the format of Server-Sent Events (HTML standard, 9.2). JSON has no line breaks.
fn event(kind: &str, state_of: Option<Arc<str>>, data: &impl Serialize) -> Event {
    let mut text = format!("event: {kind}\ndata: ").into_bytes();
    // As in `known.rs`, this cannot fail.
    let _ = serde_json::to_writer(&mut text, data);
    text.extend_from_slice(b"\n\n");
    Event {
        state_of,
        text: text.into(),
    }
}
