//! The migrations of this host, as they were seen last.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_status::{Entry, Follow, Kind, Record, Recording, StatusFolder};

use crate::output::exit::{Exit, ExitStatus};
use crate::output::migrations::Seen;
use crate::output::reason::Reason;
use crate::output::streams;

/// How long an engine may be silent. It sends a state ten times a second, from a thread of low
/// priority.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait for the first state of all engines.
const FIRST: Duration = Duration::from_secs(5);

/// How often to look for it.
const POLL: Duration = Duration::from_millis(10);

/// All of them. Each engine that runs is followed by a thread.
#[derive(Debug)]
pub(crate) struct SeenMigrations {
    folder: StatusFolder,
    followed: BTreeMap<String, Followed>,
}

/// What the thread has received.
#[derive(Debug, Clone, Default)]
struct Followed(Arc<Mutex<Received>>);

#[derive(Debug, Default)]
enum Received {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The migration.
    Migration(Box<Seen>),
    /// No engine answers: it was killed.
    Killed,
    /// The reason was reported, or the engine has ended before it sent anything.
    Gone,
}

impl SeenMigrations {
    /// Those in this folder.
    pub(crate) fn new(folder: StatusFolder) -> Self {
        Self {
            folder,
            followed: BTreeMap::new(),
        }
    }

    /// The migrations that run, and those that have ended since they are followed, or `all` that
    /// have ended; the newest first.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn look(&mut self, all: bool) -> Result<Vec<Seen>, Exit> {
        let entries = self.folder.entries().map_err(|error| {
            Exit::caused(ExitStatus::Usage, Reason::System, &error).with(
                "run this command as the user who runs `hikkoshi migrate`; --journal names another \
                 folder",
            )
        })?;
        let sockets = entries.iter().filter(|entry| entry.kind == Kind::Socket);
        for entry in sockets {
            self.followed
                .entry(entry.name.clone())
                .or_insert_with(|| Followed::start(entry));
        }
        let deadline = Instant::now() + FIRST;
        while self.followed.values().any(Followed::is_waiting) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let mut list = Vec::new();
        for entry in &entries {
            let followed = self.followed.get(&entry.name);
            match (followed.and_then(Followed::seen), entry.kind) {
                // Once, if there are a socket and a file for a moment.
                (Some(last), _) => {
                    if !list.iter().any(|other: &Seen| other.name == last.name) {
                        list.push(last);
                    }
                }
                (None, Kind::File) if all => list.extend(stored(entry)),
                (None, _) => {}
            }
        }
        Ok(list)
    }
}

impl Followed {
    /// Follows an engine.
    fn start(entry: &Entry) -> Self {
        let followed = Self::default();
        let (shared, name, path) = (followed.clone(), entry.name.clone(), entry.path.clone());
        let started = thread::Builder::new()
            .name("follow".into())
            .spawn(move || shared.follow(&name, &path));
        if let Err(error) = started {
            followed.fail(&entry.name, &error);
        }
        followed
    }

    fn follow(&self, name: &str, socket: &Path) {
        let mut follow = match Follow::open(socket, SILENCE) {
            Ok(follow) => follow,
            Err(error) if error.has_ended() => {
                // Not if it has ended just now.
                if socket.exists() {
                    streams::notice(&format!(
                        "the engine of {name} was killed: `hikkoshi migrate --resume` or `hikkoshi \
                         receive --resume` continues its migration"
                    ));
                }
                *self.lock() = Received::Killed;
                return;
            }
            Err(error) => return self.fail(name, &error),
        };
        loop {
            match follow.next() {
                Ok(Some(record)) => self.lock().add(name, record),
                Ok(None) => return self.lock().end(),
                Err(error) => return self.fail(name, &error),
            }
        }
    }

    fn fail(&self, name: &str, error: &dyn std::error::Error) {
        streams::notice(&format!("{name}: {}", Report::new(error)));
        self.lock().end();
    }

    /// Whether a state is expected.
    fn is_waiting(&self) -> bool {
        match &*self.lock() {
            Received::Nothing => true,
            Received::Migration(seen) => seen.is_running && seen.state.is_none(),
            Received::Killed | Received::Gone => false,
        }
    }

    fn seen(&self) -> Option<Seen> {
        match &*self.lock() {
            Received::Migration(seen) => Some((**seen).clone()),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Received {
    /// Adds what the engine has sent.
    fn add(&mut self, name: &str, record: Record) {
        match (record, self) {
            (Record::Recording(recording), received) => {
                *received = Self::Migration(Box::new(seen(name, true, *recording)));
            }
            (Record::State(state), Self::Migration(seen)) => seen.state = Some(*state),
            (Record::End(end), Self::Migration(seen)) => {
                seen.end = Some(end);
                seen.is_running = false;
            }
            _ => {}
        }
    }

    /// The engine sends nothing more.
    fn end(&mut self) {
        match self {
            Self::Migration(seen) => seen.is_running = false,
            other => *other = Self::Gone,
        }
    }
}

/// A migration with this name.
fn seen(name: &str, is_running: bool, recording: Recording) -> Seen {
    Seen {
        name: name.to_owned(),
        is_running: is_running && recording.end.is_none(),
        migration: recording.migration,
        state: recording.state,
        end: recording.end,
    }
}

/// A migration that has ended. One that cannot be read is reported.
fn stored(entry: &Entry) -> Option<Seen> {
    match Recording::read(&entry.path) {
        Ok(recording) => Some(seen(&entry.name, false, recording)),
        Err(error) => {
            streams::notice(&Report::new(&error).to_string());
            None
        }
    }
}
