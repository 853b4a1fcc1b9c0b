//! The status folder: sockets of running migrations, and files of these and of ended ones.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hikkoshi_linux::{Others, UnsafeRights, check_rights, connect_unix};
use rustix::fs::OFlags;

use crate::{Migration, Recording, VERSION};

/// Recordings of ended migrations that are kept: the newest. Those of migrations that run are kept
/// besides.
const MAX_ENDED_RECORDINGS: usize = 32;

/// The size of all recordings together, in bytes, above which fewer of ended migrations are kept.
const MAX_TOTAL_BYTES: u64 = 32 << 20;

/// Room that is left for others in the file system, in bytes. Journals are in the same one, and a
/// migration cannot continue without its journal.
const LEFT_FREE: u64 = 16 << 20;

/// The longest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Migrations that are listed: the newest.
const MAX_LISTED: usize = 256;

/// A folder with the sockets and files of this user's migrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusFolder(PathBuf);

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A socket: the engine runs, or was killed.
    Socket,
    /// The file of a migration that runs or has ended, or whose engine was killed.
    File,
}

/// A migration in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without the extension: the same while it runs and when it has ended.
    pub name: String,
    /// Socket or file.
    pub kind: Kind,
    /// Where it is.
    pub path: PathBuf,
    /// When it was made.
    pub modified: SystemTime,
}

/// The folder, or a file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be made or read.
    #[error("the status folder {}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// Other users could put files into it.
    #[error("the status folder {}: {rights}", folder.display())]
    Unsafe {
        /// The folder.
        folder: PathBuf,
        /// Its owner and its permissions.
        rights: UnsafeRights,
    },
    /// The recordings of other migrations that run leave no room for this one.
    #[error(
        "the status folder {} has the recordings of {running} other migrations that run, {bytes} \
         bytes: there is no room for another recording (it holds {MAX_TOTAL_BYTES} bytes; some are \
         free when one of these migrations has ended)",
        folder.display()
    )]
    Full {
        /// The folder.
        folder: PathBuf,
        /// The other migrations that run.
        running: usize,
        /// The size of their recordings together.
        bytes: u64,
    },
    /// The file of a migration cannot be read or written.
    #[error("the status file {}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// A file of another version.
    #[error("the status file {} has version {version}, and this hikkoshi reads version {VERSION}", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Its version.
        version: u64,
    },
}

impl StatusFolder {
    /// The status folder in this run folder (`/run/hikkoshi`).
    pub fn in_run_folder(folder: &Path) -> Self {
        Self(folder.join("status"))
    }

    /// The status folder with this path.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder, unless it exists. Only this user can enter a new one.
    ///
    /// # Errors
    /// If that fails, or other users may write to it.
    pub fn create(&self) -> Result<(), FolderError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&self.0)
            .map_err(|cause| self.failed(cause))?;
        self.check()
    }

    /// The socket of a new migration.
    pub(crate) fn socket(&self, migration: &Migration) -> PathBuf {
        self.0.join(format!("{}.sock", migration.entry_name()))
    }

    /// The entries of the newest migrations, the newest first. A migration has its socket, its file
    /// or both. None if the folder does not exist.
    ///
    /// # Errors
    /// If the folder cannot be read, or other users may write to it.
    pub fn entries(&self) -> Result<Vec<Entry>, FolderError> {
        let mut entries = self.all_entries()?;
        // Not by entry: the file of a migration that runs is newer than its socket, and without the
        // socket its engine would seem to have been killed.
        let mut listed = BTreeSet::new();
        for entry in &entries {
            if listed.len() == MAX_LISTED {
                break;
            }
            listed.insert(entry.name.clone());
        }
        entries.retain(|entry| listed.contains(&entry.name));
        Ok(entries)
    }

    /// All entries, the newest first. None if the folder does not exist.
    fn all_entries(&self) -> Result<Vec<Entry>, FolderError> {
        match self.check() {
            Err(FolderError::Folder { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                return Ok(Vec::new());
            }
            checked => checked?,
        }
        let files = fs::read_dir(&self.0).map_err(|cause| self.failed(cause))?;
        let mut entries: Vec<_> = files
            .filter_map(|file| Entry::of(file.ok()?.path()))
            .collect();
        entries.sort_by(|a, b| (b.modified, &b.name).cmp(&(a.modified, &a.name)));
        Ok(entries)
    }

    /// Stores the recording of a migration, in place of what was stored of it before, and removes
    /// the oldest recordings of ended ones, so that the limits are kept. Recordings of migrations
    /// that run (they have a socket) are never removed.
    ///
    /// # Errors
    /// If it cannot be written, or the recordings of other migrations that run leave no room. What
    /// was stored before is still there then.
    pub fn store(&self, recording: &Recording) -> Result<PathBuf, FolderError> {
        let name = recording.migration.entry_name();
        let file = self.0.join(format!("{name}.json"));
        let new = file.with_extension("new");
        let failed = |cause| FolderError::File {
            file: file.clone(),
            cause,
        };
        let content = serde_json::to_vec(recording).map_err(|error| failed(error.into()))?;
        self.make_room(&name, content.len() as u64)?;
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| file.write_all(&content))
            .and_then(|()| fs::rename(&new, &file));
        if let Err(cause) = written {
            let _ = fs::remove_file(&new);
            return Err(failed(cause));
        }
        Ok(file)
    }

    /// Removes the oldest recordings of ended migrations, so that one of `bytes` can be stored as
    /// `name`.
    fn make_room(&self, name: &str, bytes: u64) -> Result<(), FolderError> {
        let entries = self.all_entries()?;
        let sockets = entries.iter().filter(|entry| entry.kind == Kind::Socket);
        let running: BTreeSet<&str> = sockets.map(|entry| &*entry.name).collect();
        let others = entries
            .iter()
            .filter(|entry| entry.kind == Kind::File && entry.name != name);
        let (kept, ended): (Vec<_>, Vec<_>) =
            others.partition(|entry| running.contains(&*entry.name));
        let size = |entry: &&Entry| fs::metadata(&entry.path).map_or(0, |file| file.len());
        let of_running = kept.iter().map(size).fold(0, u64::saturating_add);
        let mut sum = of_running.saturating_add(bytes);
        if sum > MAX_TOTAL_BYTES {
            return Err(FolderError::Full {
                folder: self.0.clone(),
                running: kept.len(),
                bytes: of_running,
            });
        }
        let own = usize::from(!running.contains(name));
        for (number, old) in (own + 1..).zip(&ended) {
            sum = sum.saturating_add(size(old));
            if number > MAX_ENDED_RECORDINGS || sum > MAX_TOTAL_BYTES {
                let _ = fs::remove_file(&old.path);
            }
        }
        let system = rustix::fs::statvfs(&self.0).map_err(|error| self.failed(error.into()))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        match free >= bytes.saturating_add(LEFT_FREE) {
            true => Ok(()),
            false => Err(self.failed(io::ErrorKind::StorageFull.into())),
        }
    }

    /// Removes what killed engines left beside their recordings: sockets that no process serves,
    /// and files that were not complete. Never waits for an engine.
    pub fn remove_stale(&self) {
        let Ok(entries) = self.all_entries() else {
            return;
        };
        let mut running = BTreeSet::new();
        for entry in entries {
            if entry.kind != Kind::Socket {
                continue;
            }
            match connect_unix(&entry.path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(entry.path);
                }
                _ => {
                    running.insert(entry.path.with_extension("new"));
                }
            }
        }
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        for file in files.map(|file| file.path()) {
            if file.extension().is_some_and(|it| it == "new") && !running.contains(&file) {
                let _ = fs::remove_file(file);
            }
        }
    }

    fn check(&self) -> Result<(), FolderError> {
        let metadata = fs::metadata(&self.0).map_err(|cause| self.failed(cause))?;
        if !metadata.is_dir() {
            return Err(self.failed(io::ErrorKind::NotADirectory.into()));
        }
        check_rights(&metadata, Others::MayRead).map_err(|rights| FolderError::Unsafe {
            folder: self.0.clone(),
            rights,
        })
    }

    fn failed(&self, cause: io::Error) -> FolderError {
        FolderError::Folder {
            folder: self.0.clone(),
            cause,
        }
    }
}

impl Entry {
    fn of(path: PathBuf) -> Option<Self> {
        let kind = match path.extension()?.to_str()? {
            "sock" => Kind::Socket,
            "json" => Kind::File,
            _ => return None,
        };
        let name = path.file_stem()?.to_str()?.to_owned();
        let modified = fs::symlink_metadata(&path).ok()?.modified().ok()?;
        Some(Self {
            name,
            kind,
            path,
            modified,
        })
    }
}

impl Migration {
    /// The name of its entry in the folder, without the extension. A process may take part in
    /// several migrations, one after another.
    pub fn entry_name(&self) -> String {
        let side = self.side.name();
        let id = self.id.chars().filter(char::is_ascii_hexdigit);
        let id: String = id.take(8).collect();
        format!("{side}-{}-{id}", self.pid)
    }
}

/// Reads the file of a migration.
///
/// # Errors
/// If it cannot be read, or is not a recording of this version.
pub(crate) fn read(path: &Path) -> Result<Recording, FolderError> {
    let failed = |cause| FolderError::File {
        file: path.to_owned(),
        cause,
    };
    let file = OpenOptions::new()
        .read(true)
        // Opening a pipe must not block.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)
        .map_err(failed)?;
    let mut content = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content);
    if read.map_err(failed)? as u64 > MAX_FILE_BYTES {
        return Err(failed(io::ErrorKind::FileTooLarge.into()));
    }
    parse(&content).map_err(|error| match error {
        ParseError::Version(version) => FolderError::Version {
            file: path.to_owned(),
            version,
        },
        ParseError::Json(error) => failed(error.into()),
    })
}

/// Why a recording cannot be parsed.
#[derive(Debug)]
pub(crate) enum ParseError {
    Version(u64),
    Json(serde_json::Error),
}

/// Parses a recording. Its version comes first: the rest of another version may be anything.
pub(crate) fn parse(json: &[u8]) -> Result<Recording, ParseError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u64,
    }
    let Versioned { version } = serde_json::from_slice(json).map_err(ParseError::Json)?;
    if version != u64::from(VERSION) {
        return Err(ParseError::Version(version));
    }
    serde_json::from_slice(json).map_err(ParseError::Json)
}

impl Recording {
    /// Reads the file of a migration.
    ///
    /// # Errors
    /// If it cannot be read, or is not a recording of this version.
    pub fn read(path: &Path) -> Result<Self, FolderError> {
        read(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recorder;
    use crate::record::examples::{migration, state};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::net::UnixListener;

    fn folder() -> (tempfile::TempDir, StatusFolder) {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        (run, folder)
    }

    fn recorded(pid: u32) -> Recorder {
        let mut migration = migration();
        migration.pid = pid;
        let mut recorder = Recorder::new(migration);
        recorder.add(state(100));
        recorder
    }

    #[test]
    fn a_stored_recording_is_read_again() {
        let (_run, folder) = folder();
        assert_eq!(folder.entries().unwrap(), []);
        folder.create().unwrap();
        let recorder = recorded(1);
        let file = folder.store(recorder.recording()).unwrap();
        assert_eq!(&Recording::read(&file).unwrap(), recorder.recording());
        let [entry] = &folder.entries().unwrap()[..] else {
            panic!("one entry");
        };
        assert_eq!(
            (entry.kind, entry.name.as_str()),
            (Kind::File, "source-1-00112233")
        );
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn only_the_newest_are_kept() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        for pid in 0..u32::try_from(MAX_ENDED_RECORDINGS).unwrap() + 5 {
            let file = folder.store(recorded(pid).recording()).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(pid.into());
            fs::File::open(file).unwrap().set_modified(time).unwrap();
        }
        // The last one was stored with the present time, and is the newest.
        let entries = folder.entries().unwrap();
        assert_eq!(entries.len(), MAX_ENDED_RECORDINGS);
        assert!(
            !entries
                .iter()
                .any(|entry| entry.name.starts_with("source-0-"))
        );
    }

    #[test]
    fn large_recordings_make_room_for_new_ones() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        for number in 0..5 {
            let file = fs::File::create(folder.path().join(format!("a-{number}.json"))).unwrap();
            file.set_len(10 << 20).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number);
            file.set_modified(time).unwrap();
        }
        folder.store(recorded(7).recording()).unwrap();
        let left = folder.entries().unwrap();
        let names: Vec<_> = left.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["source-7-00112233", "a-4", "a-3", "a-2"]);
    }

    #[test]
    fn another_version_is_refused() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let file = folder.path().join("source-1-00.json");
        fs::write(&file, r#"{"version":2,"anything":[]}"#).unwrap();
        let error = Recording::read(&file).unwrap_err().to_string();
        assert!(error.contains("has version 2"), "{error}");
        fs::write(&file, "{").unwrap();
        assert!(matches!(
            Recording::read(&file),
            Err(FolderError::File { .. })
        ));
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = folder.create().unwrap_err().to_string();
        assert!(error.contains("mode 777"), "{error}");
        assert!(folder.entries().is_err());
    }

    /// Makes room for a recording that is stored next as if these files were there: name and bytes.
    fn filled(files: &[(&str, u64)]) -> (tempfile::TempDir, StatusFolder) {
        let (run, folder) = folder();
        folder.create().unwrap();
        for (number, (name, bytes)) in (0..).zip(files) {
            let file = fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(*bytes).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number);
            file.set_modified(time).unwrap();
        }
        (run, folder)
    }

    fn files(folder: &StatusFolder) -> Vec<String> {
        let entries = folder.all_entries().unwrap().into_iter();
        let files = entries.filter(|entry| entry.kind == Kind::File);
        files.map(|entry| entry.name).collect()
    }

    #[test]
    fn recordings_of_running_migrations_are_never_removed() {
        // The oldest one belongs to a migration that runs, and is as large as all others.
        let (_run, folder) = filled(&[
            ("running.json", 15 << 20),
            ("a.json", 8 << 20),
            ("b.json", 8 << 20),
            ("c.json", 8 << 20),
        ]);
        let _socket = UnixListener::bind(folder.path().join("running.sock")).unwrap();
        folder.store(recorded(7).recording()).unwrap();
        assert_eq!(files(&folder), ["source-7-00112233", "c", "b", "running"]);
        // Also not by their number.
        for pid in 100..200 {
            folder.store(recorded(pid).recording()).unwrap();
        }
        let left = files(&folder);
        assert_eq!(left.len(), 1 + MAX_ENDED_RECORDINGS);
        assert!(left.contains(&"running".to_owned()), "{left:?}");
    }

    /// Migrations that run, with their sockets, files and files that are being written. They are
    /// older than all that is stored next.
    fn running(number: usize) -> (tempfile::TempDir, StatusFolder, Vec<UnixListener>) {
        let names: Vec<_> = (0..number).map(|number| format!("r{number:03}")).collect();
        let files: Vec<_> = names
            .iter()
            .flat_map(|name| [format!("{name}.json"), format!("{name}.new")])
            .collect();
        let sizes: Vec<_> = files.iter().map(|name| (name.as_str(), 10)).collect();
        let (run, folder) = filled(&sizes);
        let socket = |name: &String| folder.path().join(name).with_extension("sock");
        let sockets = names
            .iter()
            .map(|name| UnixListener::bind(socket(name)).unwrap())
            .collect();
        (run, folder, sockets)
    }

    #[test]
    fn all_running_migrations_and_the_newest_ended_ones_are_kept() {
        for number in [40, 300] {
            let (_run, folder, _sockets) = running(number);
            for pid in 1000..1100 {
                folder.store(recorded(pid).recording()).unwrap();
            }
            let left = files(&folder);
            assert_eq!(left.len(), number + MAX_ENDED_RECORDINGS);
            let of_running = left.iter().filter(|name| name.starts_with('r'));
            assert_eq!(of_running.count(), number);
        }
    }

    #[test]
    fn what_running_engines_have_is_not_stale() {
        let (_run, folder, sockets) = running(300);
        folder.remove_stale();
        let left = |extension: &str| {
            let files = fs::read_dir(folder.path()).unwrap();
            let paths = files.map(|file| file.unwrap().path());
            paths
                .filter(|path| path.extension().is_some_and(|it| it == extension))
                .count()
        };
        assert_eq!((left("sock"), left("new"), left("json")), (300, 300, 300));
        // The engines are killed.
        drop(sockets);
        folder.remove_stale();
        assert_eq!((left("sock"), left("new"), left("json")), (0, 0, 300));
    }

    #[test]
    fn a_listed_migration_has_its_socket_and_its_file() {
        let (_run, folder, _sockets) = running(300);
        let entries = folder.entries().unwrap();
        let of = |kind| {
            let entries = entries.iter().filter(move |entry| entry.kind == kind);
            entries.map(|entry| &*entry.name).collect::<BTreeSet<_>>()
        };
        assert_eq!(of(Kind::Socket).len(), MAX_LISTED);
        assert_eq!(of(Kind::Socket), of(Kind::File));
    }

    #[test]
    fn running_migrations_without_room_for_another_recording_are_counted_in_bytes() {
        let (_run, folder) = filled(&[("r0.json", 16 << 20), ("r1.json", (16 << 20) - 10)]);
        for name in ["r0.sock", "r1.sock"] {
            drop(UnixListener::bind(folder.path().join(name)).unwrap());
        }
        let refused = folder.store(recorded(7).recording()).unwrap_err();
        assert!(
            matches!(refused, FolderError::Full { running: 2, .. }),
            "{refused}"
        );
        assert_eq!(files(&folder).len(), 2);
        // One of them can be stored again.
        let own = recorded(8);
        let own_name = folder.path().join(own.recording().migration.entry_name());
        for extension in ["json", "sock"] {
            let old = folder.path().join("r0").with_extension(extension);
            fs::rename(old, own_name.with_extension(extension)).unwrap();
        }
        folder.store(own.recording()).unwrap();
        assert_eq!(files(&folder).len(), 2);
    }

    #[test]
    fn a_recording_replaces_what_was_stored_of_it_before() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let mut recorder = recorded(7);
        folder.store(recorder.recording()).unwrap();
        recorder.add(state(5000));
        let file = folder.store(recorder.recording()).unwrap();
        assert_eq!(&Recording::read(&file).unwrap(), recorder.recording());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_killed_engines_left_is_removed_except_recordings() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a.json", "a.new", "b.json", "b.new", "c.new"] {
            fs::write(path(name), "{}").unwrap();
        }
        drop(UnixListener::bind(path("a.sock")).unwrap());
        let _listener = UnixListener::bind(path("b.sock")).unwrap();
        folder.remove_stale();
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a.json", "b.json", "b.new", "b.sock"]);
    }

    #[test]
    fn an_engine_that_accepts_nothing_is_neither_waited_for_nor_removed() {
        let (_run, folder) = folder();
        folder.create().unwrap();
        let socket = folder.path().join("a.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let mut clients = Vec::new();
        while let Ok(client) = connect_unix(&socket) {
            clients.push(client);
        }
        folder.remove_stale();
        assert!(socket.exists());
    }
}
