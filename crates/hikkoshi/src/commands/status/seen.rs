//! The migrations of this host, as they were seen last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_account::Side;
use hikkoshi_linux::is_served;
use hikkoshi_status::{
    Follow, FollowError, Migration, Recording, StatusEntry, StatusEntryKind, StatusFolder,
    StatusRecord,
};

use super::unfinished::UnfinishedMigration;
use crate::output::exit::{Exit, ExitStatus};
use crate::output::reason::Reason;
use crate::output::status::{Engine, SeenMigration, Unfinished};
use crate::output::streams;

/// How long an engine may be silent. It sends a state ten times a second, from a thread of low
/// priority.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait for the first state of all engines.
const FIRST: Duration = Duration::from_secs(5);

/// How often to look for it.
const POLL: Duration = Duration::from_millis(10);

/// Why there is no state of an engine that has sent none within [`FIRST`].
const SILENT: &str = "it sends no state (is it stopped?)";

/// All of them. Each engine that runs is followed by a thread.
#[derive(Debug)]
pub(crate) struct SeenMigrations {
    folder: StatusFolder,
    first: Duration,
    followed: BTreeMap<String, Followed>,
    /// The reasons that were reported, by the names of the migrations.
    reported: BTreeMap<String, String>,
}

/// An engine that is followed.
#[derive(Debug, Clone, Default)]
struct Followed {
    received: Arc<Mutex<Received>>,
    /// Its first state was waited for.
    was_awaited: bool,
}

/// What the thread has received.
#[derive(Debug, Default)]
struct Received {
    /// The migration, perhaps from an earlier connection.
    last: Option<SeenMigration>,
    /// The engine has sent something on this connection.
    has_sent: bool,
    /// The thread has ended.
    is_over: bool,
    /// Why, if something is wrong.
    problem: Option<String>,
}

impl SeenMigrations {
    /// Those in this folder.
    pub(crate) fn new(folder: StatusFolder) -> Self {
        Self {
            folder,
            first: FIRST,
            followed: BTreeMap::new(),
            reported: BTreeMap::new(),
        }
    }

    /// The migrations that run, and those that have ended since they are followed, or `all` that
    /// have ended; the newest first.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(crate) fn look(&mut self, all: bool) -> Result<Vec<SeenMigration>, Exit> {
        self.look_with(all, Vec::new())
    }

    /// The migrations that run, those that have ended (see [`look`](Self::look)), and the
    /// `unfinished` ones, which no engine works on.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(in crate::commands) fn look_with(
        &mut self,
        all: bool,
        mut unfinished: Vec<UnfinishedMigration>,
    ) -> Result<Vec<SeenMigration>, Exit> {
        let entries = self.folder.entries().map_err(|error| {
            Exit::caused(ExitStatus::Usage, Reason::System, &error).with(
                "run this command as the user who runs `hikkoshi migrate`; --journal names another \
                 folder",
            )
        })?;
        self.follow(&entries);
        let deadline = Instant::now() + self.first;
        while self.followed.values().any(Followed::is_awaited) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        for followed in self.followed.values_mut() {
            followed.was_awaited = true;
        }
        let mut list: Vec<SeenMigration> = Vec::new();
        // Those that have a newer engine than that of the entry.
        let mut newer = BTreeSet::new();
        for entry in &entries {
            // Once, if there are a socket and a file.
            if list.iter().any(|other| other.name == entry.name) {
                continue;
            }
            // The newest of its recordings is that of the engine that was killed last.
            let recorded = unfinished
                .iter()
                .position(|it| is_recorded(it, &entry.name));
            let found = recorded.map(|at| unfinished.remove(at));
            let is_continued = !newer.insert(of_side(&entry.name));
            let seen = self
                .seen(entry, all || found.is_some())
                .map(|seen| SeenMigration {
                    is_continued,
                    ..seen
                });
            list.extend(match (seen, found) {
                (Some(seen), Some(found)) => Some(with_journal(seen, found.is)),
                (Some(seen), None) => Some(seen),
                (None, found) => found.map(without_recording),
            });
        }
        list.extend(unfinished.into_iter().map(without_recording));
        Ok(list)
    }

    /// Follows the engines that are not followed.
    fn follow(&mut self, entries: &[StatusEntry]) {
        for entry in entries
            .iter()
            .filter(|entry| entry.kind == StatusEntryKind::Socket)
        {
            let followed = match self.followed.get(&entry.name) {
                None => Followed::default(),
                // It has sent nothing for a while, or has closed the connection.
                Some(last) if last.lock().is_over && is_running(&entry.path) => last.again(),
                Some(_) => continue,
            };
            followed.start(entry);
            self.followed.insert(entry.name.clone(), followed);
        }
    }

    /// What is known of a migration. `None`: it is not listed.
    fn seen(&mut self, entry: &StatusEntry, all: bool) -> Option<SeenMigration> {
        let name = &entry.name;
        let [socket, file] = ["sock", "json"].map(|end| entry.path.with_extension(end));
        let runs = is_running(&socket);
        let followed = self.followed.get(name).cloned().unwrap_or_default();
        let (last, engine, problem) = {
            let received = followed.lock();
            let engine = received.engine(runs);
            (received.last.clone(), engine, received.problem.clone())
        };
        match engine {
            Engine::Answers => drop(self.reported.remove(name)),
            Engine::Silent => {
                let why = problem.unwrap_or_else(|| SILENT.to_owned());
                self.report(name, why, |why| {
                    format!("the engine of {name} runs, and its present state is not known: {why}")
                });
            }
            Engine::Gone => {
                if let Some(why) = problem {
                    self.report(name, why, |why| format!("{name}: {why}"));
                }
            }
        }
        let stored = |engine| stored(name, &file, engine);
        match (last, engine) {
            (Some(last), engine) => Some(SeenMigration { engine, ..last }),
            (None, Engine::Gone) => {
                (all && entry.kind == StatusEntryKind::File).then(|| stored(engine))?
            }
            (None, _) => Some(
                // If it cannot be read, that was reported.
                file.exists()
                    .then(|| stored(engine))
                    .flatten()
                    .unwrap_or_else(|| unknown(name)),
            ),
        }
    }

    /// Reports why the state of a migration is not known, once.
    fn report(&mut self, name: &str, why: String, text: impl FnOnce(&str) -> String) {
        if self.reported.get(name) != Some(&why) {
            streams::notice(&text(&why));
            self.reported.insert(name.to_owned(), why);
        }
    }
}

/// Whether an engine serves this socket. If that is not known, it may.
fn is_running(socket: &Path) -> bool {
    is_served(socket).unwrap_or(true)
}

impl Followed {
    /// Another connection to the engine.
    fn again(&self) -> Self {
        let last = self.lock().last.clone();
        let received = Received {
            last,
            ..Received::default()
        };
        Self {
            received: Arc::new(Mutex::new(received)),
            was_awaited: true,
        }
    }

    /// Follows the engine.
    fn start(&self, entry: &StatusEntry) {
        let (shared, name, path) = (self.clone(), entry.name.clone(), entry.path.clone());
        let started = thread::Builder::new()
            .name("follow".into())
            .spawn(move || shared.follow(&name, &path));
        if let Err(error) = started {
            self.fail(&error);
        }
    }

    fn follow(&self, name: &str, socket: &Path) {
        let mut follow = match Follow::open(socket, SILENCE) {
            Ok(follow) => follow,
            Err(error) if error.has_ended() => {
                // Not if it has ended just now.
                let why = "its engine was killed: `hikkoshi migrate --resume` or `hikkoshi receive \
                           --resume` continues its migration";
                let problem = socket.exists().then(|| why.to_owned());
                return self.lock().end(problem);
            }
            Err(error) => return self.failed(&error),
        };
        loop {
            match follow.next() {
                Ok(Some(record)) => self.lock().add(name, record),
                Ok(None) => {
                    let mut received = self.lock();
                    let why = "it accepts no connection now: it has as many clients as it serves \
                               (`hikkoshi status`, `hikkoshi dashboard`)";
                    let problem = (!received.has_sent).then(|| why.to_owned());
                    return received.end(problem);
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    fn failed(&self, error: &FollowError) {
        match error.has_timed_out() {
            true => self.lock().end(Some(SILENT.to_owned())),
            false => self.fail(error),
        }
    }

    fn fail(&self, error: &dyn std::error::Error) {
        self.lock().end(Some(Report::new(error).to_string()));
    }

    /// Whether a first state is expected.
    fn is_awaited(&self) -> bool {
        let received = self.lock();
        let has_state = received
            .last
            .as_ref()
            .is_some_and(|seen| seen.state.is_some());
        !self.was_awaited && !received.is_over && !has_state
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Received {
    /// Adds what the engine has sent.
    fn add(&mut self, name: &str, record: StatusRecord) {
        self.has_sent = true;
        match (record, &mut self.last) {
            (StatusRecord::Recording(recording), last) => {
                *last = Some(seen(name, Engine::Answers, *recording));
            }
            (StatusRecord::State(state), Some(seen)) => seen.state = Some(*state),
            (StatusRecord::End(end), Some(seen)) => seen.end = Some(end),
            _ => {}
        }
    }

    /// The engine sends nothing more on this connection.
    fn end(&mut self, problem: Option<String>) {
        self.is_over = true;
        self.problem = problem;
    }

    /// What the engine does, if it `runs`: its socket is served.
    fn engine(&self, runs: bool) -> Engine {
        let has_end = self.last.as_ref().is_some_and(|seen| seen.end.is_some());
        match (has_end || !runs, self.has_sent && !self.is_over) {
            (true, _) => Engine::Gone,
            (false, true) => Engine::Answers,
            (false, false) => Engine::Silent,
        }
    }
}

/// A migration with this name.
fn seen(name: &str, engine: Engine, recording: Recording) -> SeenMigration {
    SeenMigration {
        name: name.to_owned(),
        engine: match recording.end {
            Some(_) => Engine::Gone,
            None => engine,
        },
        migration: recording.migration,
        state: recording.state,
        end: recording.end,
        unfinished: None,
        is_continued: false,
    }
}

/// The side and the number of the migration that the entry with this name
/// ([`Migration::entry_name`]) is of: engines that continue it have the same.
fn of_side(name: &str) -> (&str, &str) {
    let side = name.split('-').next().unwrap_or_default();
    let number = name.split('-').next_back().unwrap_or_default();
    (side, number)
}

/// Whether the entry with this name ([`Migration::entry_name`]) is a recording of the migration.
fn is_recorded(unfinished: &UnfinishedMigration, name: &str) -> bool {
    let (side, digits) = of_side(name);
    // It has the first digits only.
    let is_number = !digits.is_empty() && unfinished.id.starts_with(digits);
    side == unfinished.side.name() && is_number
}

/// A migration whose engine has left a recording and a journal. The recording was stored now and
/// then: its last state counts only if the journal has no later stage.
fn with_journal(seen: SeenMigration, unfinished: Unfinished) -> SeenMigration {
    SeenMigration {
        state: seen.state.filter(|state| state.stage == unfinished.stage),
        unfinished: Some(unfinished),
        ..seen
    }
}

/// A migration of which only the journal is known.
fn without_recording(unfinished: UnfinishedMigration) -> SeenMigration {
    let UnfinishedMigration {
        side,
        id,
        guest,
        peer,
        mode,
        is,
    } = unfinished;
    let seen = unknown(&format!("{}-0-{id}", side.name()));
    SeenMigration {
        engine: Engine::Gone,
        migration: Migration {
            guest,
            peer,
            mode: Some(mode),
            ..seen.migration
        },
        unfinished: Some(is),
        ..seen
    }
}

/// A migration, as its engine has stored it. One that cannot be read is reported.
fn stored(name: &str, file: &Path, engine: Engine) -> Option<SeenMigration> {
    match Recording::read(file) {
        Ok(recording) => Some(seen(name, engine, recording)),
        Err(error) => {
            streams::notice(&Report::new(&error).to_string());
            None
        }
    }
}

/// A migration whose engine runs, and of which only the name is known
/// ([`Migration::entry_name`]).
fn unknown(name: &str) -> SeenMigration {
    let mut parts = name.split('-');
    let side = match parts.next() {
        Some("destination") => Side::Destination,
        _ => Side::Source,
    };
    let pid = parts.next().and_then(|pid| pid.parse().ok());
    let migration = Migration {
        pid: pid.unwrap_or_default(),
        ..Migration::new(parts.next().unwrap_or_default(), side, name)
    };
    SeenMigration {
        name: name.to_owned(),
        engine: Engine::Silent,
        migration,
        state: None,
        end: None,
        unfinished: None,
        is_continued: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::status::examples;
    use hikkoshi_status::Recorder;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A migration in a new folder, whose socket is bound, and whose recording is stored or not.
    fn folder(is_stored: bool) -> (tempfile::TempDir, SeenMigrations, String, UnixListener) {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        folder.create().unwrap();
        let migration = examples::seen(Side::Source, "web", 7, true).migration;
        let name = migration.entry_name();
        if is_stored {
            folder.store(Recorder::new(migration).recording()).unwrap();
        }
        let listener = UnixListener::bind(folder.path().join(format!("{name}.sock"))).unwrap();
        let mut migrations = SeenMigrations::new(folder);
        migrations.first = Duration::from_millis(50);
        (run, migrations, name, listener)
    }

    #[test]
    fn an_engine_that_does_not_answer_is_listed_and_has_not_ended() {
        for is_stored in [true, false] {
            let (_run, mut migrations, name, listener) = folder(is_stored);
            for all in [false, true, false] {
                let [seen] = &migrations.look(all).unwrap()[..] else {
                    panic!("one migration");
                };
                assert_eq!((&*seen.name, seen.engine), (&*name, Engine::Silent));
                assert_eq!((seen.migration.pid, seen.migration.side), (7, Side::Source));
                let guest = if is_stored { "web" } else { &name };
                assert_eq!(seen.migration.guest, guest);
            }
            // It was killed.
            drop(listener);
            // Processes that other tests have forked have the listener as well, for a moment.
            let socket = migrations.folder.path().join(format!("{name}.sock"));
            while is_running(&socket) {
                thread::yield_now();
            }
            let shown = migrations.look(true).unwrap();
            assert_eq!(shown.len(), usize::from(is_stored));
            assert!(shown.iter().all(|seen| seen.engine == Engine::Gone));
            assert!(migrations.look(false).unwrap().is_empty());
        }
    }

    /// Not an alarm: the later one was ended, or works on it.
    #[test]
    fn a_killed_engine_whose_migration_a_later_one_has_finished_is_continued() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        folder.create().unwrap();
        let mut migration = examples::seen(Side::Source, "web", 7, true).migration;
        let store = |migration: &Migration| {
            let recorder = Recorder::new(migration.clone());
            folder.store(recorder.recording()).unwrap();
            // The newest one is that which was written last.
            thread::sleep(Duration::from_millis(20));
        };
        store(&migration);
        migration.pid = 8;
        store(&migration);
        let mut other = migration.clone();
        (other.side, other.pid) = (Side::Destination, 9);
        store(&other);
        let all = SeenMigrations::new(folder).look(true).unwrap();
        let continued = all
            .iter()
            .map(|seen| (seen.migration.pid, seen.is_continued));
        let expected = [(9, false), (8, false), (7, true)];
        assert_eq!(continued.collect::<Vec<_>>(), expected);
    }

    /// As an engine with too many clients, which closes the connection; and later it does not.
    #[test]
    fn an_engine_that_closes_the_connection_is_asked_again() {
        let (_run, mut migrations, _, listener) = folder(true);
        let migration = examples::seen(Side::Source, "web", 7, true).migration;
        let first = StatusRecord::Recording(Box::new(Recorder::new(migration).recording().clone()));
        let is_full = Arc::new(AtomicBool::new(true));
        let shared = Arc::clone(&is_full);
        thread::spawn(move || {
            let mut clients = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                if !shared.load(Ordering::Relaxed) {
                    let mut line = serde_json::to_vec(&first).unwrap();
                    line.push(b'\n');
                    std::io::Write::write_all(&mut stream, &line).unwrap();
                    clients.push(stream);
                }
            }
        });
        let mut engine = || {
            migrations
                .look(false)
                .unwrap()
                .first()
                .map(|seen| seen.engine)
        };
        assert_eq!(engine(), Some(Engine::Silent));
        is_full.store(false, Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(60);
        while engine() != Some(Engine::Answers) {
            assert!(Instant::now() < deadline);
            thread::sleep(POLL);
        }
    }
}
