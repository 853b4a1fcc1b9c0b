//! The status folder: sockets of running migrations, and files of these and of ended ones.

#[cfg(test)]
mod examples;
mod past;
mod recording_file;
mod retention;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use hikkoshi_linux::{Others, UnsafeRights, check_rights};

use crate::{Migration, VERSION};

pub(crate) use recording_file::{ParseError, parse};

/// Migrations that are listed: the newest.
const MAX_LISTED: usize = 256;

/// The size of all recordings together, in bytes, above which fewer of ended migrations are kept.
const MAX_TOTAL_BYTES: u64 = 32 << 20;

/// A folder with the sockets and files of this user's migrations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusFolder(PathBuf);

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusEntryKind {
    /// A socket: the engine runs, or was killed.
    Socket,
    /// The file of a migration that runs or has ended, or whose engine was killed.
    File,
}

/// A migration in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusEntry {
    /// Its name, without the extension: the same while it runs and when it has ended.
    pub name: String,
    /// Socket or file.
    pub kind: StatusEntryKind,
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
    pub fn entries(&self) -> Result<Vec<StatusEntry>, FolderError> {
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
    fn all_entries(&self) -> Result<Vec<StatusEntry>, FolderError> {
        match self.check() {
            Err(FolderError::Folder { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                return Ok(Vec::new());
            }
            checked => checked?,
        }
        let files = fs::read_dir(&self.0).map_err(|cause| self.failed(cause))?;
        let mut entries: Vec<_> = files
            .filter_map(|file| StatusEntry::from_path(file.ok()?.path()))
            .collect();
        entries.sort_by(|a, b| (b.modified, &b.name).cmp(&(a.modified, &a.name)));
        Ok(entries)
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

impl StatusEntry {
    fn from_path(path: PathBuf) -> Option<Self> {
        let kind = match path.extension()?.to_str()? {
            "sock" => StatusEntryKind::Socket,
            "json" => StatusEntryKind::File,
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

#[cfg(test)]
mod tests {
    use super::examples::{folder, recorded, running};
    use super::*;
    use crate::Recording;
    use crate::record::examples::state;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
            (StatusEntryKind::File, "source-1-00112233")
        );
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
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

    #[test]
    fn a_listed_migration_has_its_socket_and_its_file() {
        let (_run, folder, _sockets) = running(300);
        let entries = folder.entries().unwrap();
        let of = |kind| {
            let entries = entries.iter().filter(move |entry| entry.kind == kind);
            entries.map(|entry| &*entry.name).collect::<BTreeSet<_>>()
        };
        assert_eq!(of(StatusEntryKind::Socket).len(), MAX_LISTED);
        assert_eq!(of(StatusEntryKind::Socket), of(StatusEntryKind::File));
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
}
