//! What was moved, from the recordings of a status folder, and from the lines that those have left
//! which were removed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use hikkoshi_account::Side;
use serde::{Deserialize, Serialize};

use crate::{FolderError, Recording, StatusEntryKind, StatusFolder, join_all};

/// The version of the entries.
pub const HISTORY_VERSION: u32 = 1;

/// A migration that has ended, or whose engine was killed: what both sides and all engines have
/// recorded on this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastMigration {
    /// [`HISTORY_VERSION`].
    pub version: u32,
    /// The number of the migration.
    pub id: String,
    /// The guest.
    pub guest: String,
    /// When it began: milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// When the last thing of it was recorded.
    pub ended_unix_ms: u64,
    /// The source: its host's name, or its address if only the destination's side is here.
    pub from: String,
    /// The destination, likewise.
    pub to: String,
    /// The sides that were recorded here.
    pub sides: Vec<Side>,
    /// The mode, or `unknown`.
    pub mode: String,
    /// From the beginning to the end, in milliseconds.
    pub total_ms: f64,
    /// How long the guest was paused, in milliseconds: likely, if that is known, or else at most
    /// (at the source) or at least (if only the destination's side is here). `None`: it was not
    /// paused, or that is not known.
    pub downtime_ms: Option<f64>,
    /// Bytes that were sent, disks included.
    pub bytes: u64,
    /// The exit status of the engine. `None`: it was killed.
    pub exit_status: Option<u8>,
    /// How it ended: a code of `docs/json.md`, or `engine_lost`.
    pub result: String,
    /// The same for a person.
    pub message: Option<String>,
    /// The names that the entries of its recordings have in the status folder; none: they were
    /// removed.
    pub entries: Vec<String>,
}

/// A file of the status folder that has no recording.
#[derive(Debug)]
pub struct SkippedFile {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub why: SkipReason,
}

/// Why a file is skipped.
#[derive(Debug, thiserror::Error)]
pub enum SkipReason {
    /// It is damaged, of another version, or cannot be read.
    #[error(transparent)]
    Unreadable(#[from] FolderError),
    /// An engine was killed while it wrote it.
    #[error("an engine was killed while it wrote this recording")]
    Torn,
    /// It is neither a recording nor a socket.
    #[error("it is not a file of hikkoshi")]
    Foreign,
}

/// The history of a host.
#[derive(Debug, Default)]
pub struct History {
    /// The migrations, the oldest first.
    pub migrations: Vec<PastMigration>,
    /// What was skipped, by path.
    pub skipped: Vec<SkippedFile>,
}

/// The name of the result of a migration whose engine was killed.
const ENGINE_LOST: &str = "engine_lost";

impl History {
    /// The migrations in this folder that no engine works on.
    ///
    /// # Errors
    /// If the folder cannot be read, or other users may write to it.
    pub fn read(folder: &StatusFolder) -> Result<Self, FolderError> {
        let entries = folder.entries()?;
        let is_running = |name: &str| {
            let socket = folder.path().join(format!("{name}.sock"));
            // If that is not known, it may.
            socket.exists() && hikkoshi_linux::is_served(&socket).unwrap_or(true)
        };
        let mut history = Self {
            skipped: other_files(folder, is_running),
            ..Self::default()
        };
        let mut recordings = Vec::new();
        for entry in &entries {
            if entry.kind != StatusEntryKind::File || is_running(&entry.name) {
                continue;
            }
            match Recording::read(&entry.path) {
                Ok(recording) => recordings.push(recording),
                Err(why) => history.skipped.push(SkippedFile {
                    path: entry.path.clone(),
                    why: why.into(),
                }),
            }
        }
        history.skipped.sort_by(|a, b| a.path.cmp(&b.path));
        history.migrations = with_past(migrations(recordings), folder.past());
        Ok(history)
    }
}

/// Files that are not entries. Nothing, if the folder is not there.
fn other_files(folder: &StatusFolder, is_running: impl Fn(&str) -> bool) -> Vec<SkippedFile> {
    let files = fs::read_dir(folder.path()).into_iter().flatten().flatten();
    let skipped = files.filter_map(|file| {
        let path = file.path();
        if path == folder.evacuation() || path == folder.past_file() {
            return None;
        }
        let name = path.file_stem()?.to_string_lossy().into_owned();
        let why = match path.extension().and_then(|end| end.to_str()) {
            Some("sock" | "json") => return None,
            Some("new") if is_running(&name) => return None,
            Some("new") => SkipReason::Torn,
            _ => SkipReason::Foreign,
        };
        Some(SkippedFile { path, why })
    });
    skipped.collect()
}

/// One for each number.
fn migrations(recordings: Vec<Recording>) -> Vec<PastMigration> {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for recording in &recordings {
        let migration = &recording.migration;
        let all = names.entry(migration.id.clone()).or_default();
        all.push(migration.entry_name());
    }
    let mut by_id: BTreeMap<String, Vec<Recording>> = BTreeMap::new();
    for recording in join_all(recordings) {
        let all = by_id.entry(recording.migration.id.clone()).or_default();
        all.push(recording);
    }
    let past = by_id.into_iter().filter_map(|(id, recordings)| {
        let mut past = past_migration(&recordings)?;
        past.entries = names.remove(&id).unwrap_or_default();
        past.entries.sort_unstable();
        Some(past)
    });
    past.collect()
}

/// With those of which there is no recording any more. If both sides were removed, the source's
/// counts.
fn with_past(mut known: Vec<PastMigration>, past: Vec<PastMigration>) -> Vec<PastMigration> {
    let mut by_id: BTreeMap<String, PastMigration> = BTreeMap::new();
    let is_known = |past: &PastMigration| known.iter().any(|it| it.id == past.id);
    for past in past.into_iter().filter(|past| !is_known(past)) {
        let other = by_id.get(&past.id);
        if other.is_none_or(|other| !other.sides.contains(&Side::Source)) {
            by_id.insert(past.id.clone(), past);
        }
    }
    known.extend(by_id.into_values());
    known.sort_by(|a, b| (a.started_unix_ms, &a.id).cmp(&(b.started_unix_ms, &b.id)));
    known
}

impl PastMigration {
    /// Whether this version can read it.
    pub(crate) fn is_known(&self) -> bool {
        self.version == HISTORY_VERSION
    }
}

/// What the recordings of one migration say. Of recordings of one side that could not be joined,
/// the newest counts.
pub(crate) fn past_migration(recordings: &[Recording]) -> Option<PastMigration> {
    let newest = |side: Side| {
        let own = recordings.iter().filter(|it| it.migration.side == side);
        own.max_by_key(|it| it.engine_started_unix_ms())
    };
    let (source, destination) = (newest(Side::Source), newest(Side::Destination));
    // The source knows when its guest was paused, and what was sent.
    let main = source.or(destination)?;
    let migration = &main.migration;
    let (from, to) = match (source, destination) {
        (Some(source), Some(destination)) => (&source.migration.host, &destination.migration.host),
        (Some(source), None) => (&source.migration.host, &source.migration.peer),
        (None, _) => (&migration.peer, &migration.host),
    };
    let each = || [source, destination].into_iter().flatten();
    let ends = || each().filter_map(|it| it.end.as_ref());
    // What one side knows for certain counts: another one may have been killed before it knew it.
    let certain = |status: u8| ends().find(|end| end.exit_status == status);
    let end = certain(0).or(certain(4)).or(main.end.as_ref());
    let account = main.end.as_ref().and_then(|end| end.account.as_deref());
    let account = account.map(|statistics| &statistics.account);
    let state = main.state.as_ref();
    let lasted = main.last_ms();
    #[allow(clippy::cast_precision_loss)] // A time for people.
    let total_ms = account.map_or(lasted as f64, |account| account.total_ms);
    let downtime_ms = match account {
        Some(account) => account.likely_downtime_ms.or(account.downtime_ms),
        None => state.and_then(|state| state.likely_downtime_ms.or(state.downtime_ms)),
    };
    let bytes = match (account, state) {
        (Some(account), _) => {
            let disks = account.disk_bytes.unwrap_or(0);
            account.bytes.all().saturating_add(disks)
        }
        (None, Some(state)) => state.bytes.all(),
        (None, None) => 0,
    };
    Some(PastMigration {
        version: HISTORY_VERSION,
        id: migration.id.clone(),
        guest: migration.guest.clone(),
        started_unix_ms: migration.started_unix_ms,
        ended_unix_ms: migration.started_unix_ms.saturating_add(lasted),
        from: from.clone(),
        to: to.clone(),
        sides: each().map(|it| it.migration.side).collect(),
        mode: migration.mode_name().to_owned(),
        total_ms,
        downtime_ms: downtime_ms.filter(|ms| *ms > 0.0),
        bytes,
        exit_status: end.map(|end| end.exit_status),
        result: end.map_or(ENGINE_LOST, |end| &end.reason).to_owned(),
        message: end.map(|end| end.message.clone()),
        entries: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::End;
    use crate::record::examples::{migration, state};
    use std::os::unix::net::UnixListener;

    fn end(exit_status: u8, reason: &str) -> End {
        End {
            at_ms: 900,
            exit_status,
            reason: reason.to_owned(),
            message: format!("it is {reason}"),
            next: None,
            account: None,
        }
    }

    /// A recording of one side, which began at this second.
    fn recording(id: &str, side: Side, began_s: u64, end: Option<End>) -> Recording {
        let mut migration = migration();
        migration.id = id.to_owned();
        migration.side = side;
        migration.pid = u32::try_from(began_s).unwrap();
        migration.started_unix_ms = began_s * 1000;
        if side == Side::Destination {
            migration.host = "host-b".to_owned();
            migration.peer = "10.0.0.1:4000".to_owned();
        }
        let mut state = state(1000);
        state.bytes.precopy = 5000;
        state.downtime_ms = Some(12.5);
        Recording {
            state: Some(state),
            end,
            ..Recording::new(migration)
        }
    }

    #[test]
    fn a_migration_of_both_sides_and_several_engines_is_one_entry() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        assert!(History::read(&folder).unwrap().migrations.is_empty());
        folder.create().unwrap();
        let killed = recording("aa11", Side::Source, 100, None);
        let mut later = recording("aa11", Side::Source, 110, Some(end(0, "moved")));
        later.migration.resumed = true;
        for recording in [
            &recording("bb22", Side::Destination, 200, Some(end(1, "link"))),
            &later,
            &killed,
            &recording("aa11", Side::Destination, 101, None),
            &recording("cc33", Side::Source, 50, None),
        ] {
            folder.store(recording).unwrap();
        }
        let history = History::read(&folder).unwrap();
        assert!(history.skipped.is_empty());
        let [lost, moved, failed] = &history.migrations[..] else {
            panic!("{:?}", history.migrations);
        };
        assert_eq!(
            (&*lost.id, &*lost.result, lost.exit_status),
            ("cc33", ENGINE_LOST, None)
        );
        assert_eq!(
            (&*moved.id, &*moved.result, moved.exit_status),
            ("aa11", "moved", Some(0))
        );
        assert_eq!((&*moved.from, &*moved.to), ("host-a", "host-b"));
        assert_eq!(moved.sides, [Side::Source, Side::Destination]);
        assert_eq!(moved.started_unix_ms, 100_000);
        // The engines together: 10 s and one more.
        assert_eq!(moved.ended_unix_ms, 111_000);
        assert_eq!((moved.bytes, moved.downtime_ms), (10_000, Some(12.5)));
        assert_eq!(moved.entries.len(), 3);
        assert_eq!((&*failed.from, &*failed.to), ("10.0.0.1:4000", "host-b"));
        assert_eq!(failed.result, "link");
    }

    /// The source was killed before it knew.
    #[test]
    fn what_one_side_knows_counts() {
        let of = |source: Option<End>, destination: Option<End>| {
            let both = [
                recording("aa", Side::Source, 100, source),
                recording("aa", Side::Destination, 100, destination),
            ];
            migrations(both.to_vec()).remove(0).result
        };
        assert_eq!(of(None, Some(end(0, "moved"))), "moved");
        assert_eq!(of(Some(end(3, "link")), Some(end(0, "moved"))), "moved");
        assert_eq!(
            of(Some(end(3, "link")), Some(end(4, "guest_lost"))),
            "guest_lost"
        );
        assert_eq!(of(Some(end(1, "refused")), Some(end(1, "link"))), "refused");
        assert_eq!(of(None, Some(end(1, "link"))), ENGINE_LOST);
    }

    #[test]
    fn damaged_and_foreign_files_are_named_and_skipped() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        folder.create().unwrap();
        let good = recording("aa11", Side::Source, 100, Some(end(0, "moved")));
        let file = folder.store(&good).unwrap();
        let content = fs::read(&file).unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("source-7-cut.json"), &content[..content.len() / 2]).unwrap();
        fs::write(path("source-7-empty.json"), "").unwrap();
        fs::write(path("source-7-other.json"), "{\"version\":99}").unwrap();
        fs::write(path("source-7-torn.new"), &content[..10]).unwrap();
        fs::write(path("notes.txt"), "x").unwrap();
        fs::create_dir(path("folder.json")).unwrap();
        // One that runs, and is being written.
        let running = recording("dd44", Side::Source, 300, None);
        let stored = folder.store(&running).unwrap();
        let _served = UnixListener::bind(stored.with_extension("sock")).unwrap();
        fs::write(stored.with_extension("new"), "{").unwrap();
        let history = History::read(&folder).unwrap();
        let ids: Vec<_> = history.migrations.iter().map(|it| &*it.id).collect();
        assert_eq!(ids, ["aa11"]);
        let skipped = history.skipped.iter().map(|skipped| {
            let name = skipped.path.file_name().unwrap().to_str().unwrap();
            (name, std::mem::discriminant(&skipped.why))
        });
        let skipped: Vec<_> = skipped.collect();
        let unreadable = std::mem::discriminant(&history.skipped[0].why);
        let torn = std::mem::discriminant(&SkipReason::Torn);
        let foreign = std::mem::discriminant(&SkipReason::Foreign);
        assert_eq!(
            skipped,
            [
                ("folder.json", unreadable),
                ("notes.txt", foreign),
                ("source-7-cut.json", unreadable),
                ("source-7-empty.json", unreadable),
                ("source-7-other.json", unreadable),
                ("source-7-torn.new", torn),
            ]
        );
        let why = history.skipped[4].why.to_string();
        assert!(why.contains("version 99"), "{why}");
    }

    #[test]
    fn any_damage_of_a_recording_is_survived() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        folder.create().unwrap();
        let good = recording("aa11", Side::Source, 100, Some(end(0, "moved")));
        let file = folder.store(&good).unwrap();
        let content = fs::read(&file).unwrap();
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 0x11;
            fs::write(&file, &damaged).unwrap();
            let history = History::read(&folder).unwrap();
            assert_eq!(history.migrations.len() + history.skipped.len(), 1, "{at}");
        }
    }
}
