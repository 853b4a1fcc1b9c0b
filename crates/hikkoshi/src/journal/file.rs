//! A journal file and its lock.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use error_reporter::Report;
use hikkoshi_qemu::QemuIdentity;

use super::entry::{DestinationEntry, JournalEntry};
use super::lock::{JournalLock, LockHolder};
use super::paths::absolute;
use super::permissions;
use super::record;

/// More than any journal needs: it has a few hundred bytes for each RAM block.
const MAX_BYTES: u64 = 16 << 20;

/// A journal file that no other process works with. It need not exist.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    lock: JournalLock,
}

impl JournalFile {
    /// Locks the journal for a QEMU process in `folder`, which is created if necessary.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process holds the lock.
    pub(crate) fn for_qemu<E: JournalEntry>(
        folder: &Path,
        identity: &QemuIdentity,
    ) -> io::Result<Self> {
        Self::make_folder(folder)?;
        let name = format!("{}-{}-{}.json", E::SIDE, identity.pid, identity.start_time);
        Self::lock(&folder.join(name))
    }

    /// Locks a name in `folder` for a receiver whose guest has no QEMU here yet, so that the
    /// program is not removed, or replaced by one that cannot resume. No journal has that name.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub(crate) fn for_receiver(folder: &Path) -> io::Result<Self> {
        Self::make_folder(folder)?;
        let mut number = 0_u32;
        loop {
            let name = format!("{}-receiver-{number}.json", DestinationEntry::SIDE);
            if let Some(file) = Self::try_lock(&folder.join(name))? {
                return Ok(file);
            }
            number += 1;
        }
    }

    /// Creates the folder of journals if necessary, and checks that others cannot write there.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| suggest_folder(&about(folder, &error)))?;
        permissions::check_folder(folder)
    }

    /// Locks the journal at `path`.
    ///
    /// # Errors
    /// When others may write to its folder, or another process holds the lock (`WouldBlock`).
    pub(crate) fn lock(path: &Path) -> io::Result<Self> {
        let path = absolute(path);
        Self::check_place(&path)?;
        let lock = JournalLock::acquire(&path).map_err(|error| about(&path, &error))?;
        let file = Self { path, lock };
        file.mark(LockHolder::Engine);
        Ok(file)
    }

    /// Locks the journal at `path` without waiting; `None` while another process holds the lock.
    pub(crate) fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        let path = absolute(path);
        let lock = JournalLock::try_acquire(&path)?;
        Ok(lock.map(|lock| Self { path, lock }))
    }

    /// The standard input of a process that works with the journal from now on: no other one gets
    /// the lock in between.
    ///
    /// # Errors
    /// When this process has too many open files.
    pub(crate) fn lock_to_pass_on(&self) -> io::Result<OwnedFd> {
        self.lock.to_pass_on()
    }

    /// Records who holds the lock, for waiting processes.
    pub(crate) fn mark(&self, holder: LockHolder) {
        self.lock.mark(holder);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a file: with the lock, whether the migration is unfinished. `true` if that
    /// cannot be found out.
    pub(crate) fn is_there(&self) -> bool {
        self.path.try_exists().unwrap_or(true)
    }

    /// The content; `None` if there is no file.
    ///
    /// # Errors
    /// When it cannot be read or decoded.
    pub(crate) fn read<E: JournalEntry>(&self) -> io::Result<Option<E>> {
        read(&self.path)
    }

    /// The content of the journal at `path`, without its lock; `None` if there is no file.
    ///
    /// # Errors
    /// When it cannot be read or decoded.
    pub(crate) fn read_at<E: JournalEntry>(path: &Path) -> io::Result<Option<E>> {
        read(path)
    }

    /// The journal that `path` leads to, which may be a symbolic link (`--journal-link`). A link
    /// that leads nowhere, and a file that is missing, stay as they are.
    ///
    /// # Errors
    /// When others could have made the link.
    pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
        let path = absolute(path);
        if path.is_symlink() {
            Self::check_place(&path)?;
        }
        Ok(std::fs::canonicalize(&path).unwrap_or(path))
    }

    /// Checks the folder of a journal, or of a link to one.
    ///
    /// # Errors
    /// When others can make files there.
    pub(crate) fn check_place(path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), permissions::check_folder)
    }

    /// Replaces the content. After an error the old content is there.
    ///
    /// # Errors
    /// When it cannot be encoded or written.
    pub(crate) fn write<E: JournalEntry>(&self, entry: &E) -> io::Result<()> {
        let before = match std::fs::read(&self.path) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(suggest_folder(&about(&self.path, &error))),
        };
        let text =
            record::encode(entry).map_err(|error| about(&self.path, &io::Error::other(error)))?;
        self.replace(&text).map_err(|error| {
            // The new content may be in place, and lost by a crash of the host.
            if let Err(again) = self.restore(before.as_deref()) {
                tracing::error!(error = %again, path = %self.path.display(),
                    "the journal describes a step that was not taken: restoring its old content");
            }
            suggest_folder(&about(&self.path, &error))
        })
    }

    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let new = self.path.with_extension("new");
        let written = self.replace_by(&new, text);
        if written.is_err() {
            // The space that it takes may be needed.
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    fn replace_by(&self, new: &Path, text: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(new)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(new, &self.path)?;
        match self.path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    fn restore(&self, before: Option<&[u8]>) -> io::Result<()> {
        match before {
            Some(before) if std::fs::read(&self.path).is_ok_and(|now| now == before) => Ok(()),
            Some(before) => self.replace(before),
            None => match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Removes the file: the migration is over.
    pub(crate) fn remove(&self) {
        // A process that was killed while writing leaves an incomplete new file.
        for path in [
            self.path.clone(),
            self.path.with_extension("new"),
            self.path.with_extension("lock"),
        ] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(error = %Report::new(&error), path = %path.display(), "removing the journal");
                }
                _ => {}
            }
        }
    }
}

impl Drop for JournalFile {
    /// Removes the lock file if there is no journal.
    fn drop(&mut self) {
        if let Ok(false) = self.path.try_exists() {
            // Whether it is removed makes no difference to a later process.
            let _ = self.lock.remove();
        }
    }
}

/// Reads and decodes a journal; `None` if there is no file.
///
/// # Errors
/// When it cannot be read or decoded.
pub(super) fn read<E: JournalEntry>(path: &Path) -> io::Result<Option<E>> {
    let text = match permissions::open(path) {
        Ok(file) => permissions::read(file, MAX_BYTES),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    text.and_then(|text| record::decode::<E>(&text).map_err(io::Error::other))
        .map(Some)
        .map_err(|error| about(path, &error))
}

/// Adds the path to an error.
pub(super) fn about(path: &Path, error: &io::Error) -> io::Error {
    let error_text = Report::new(error);
    io::Error::new(error.kind(), format!("{}: {error_text}", path.display()))
}

/// Adds what helps if the folder cannot be written to.
fn suggest_folder(error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "{} (--journal DIR selects another folder)",
            Report::new(error)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader must not see a step that could not be stored.
    #[test]
    fn the_old_content_is_restored_after_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = JournalFile::lock(&folder.path().join("source-1-1.json")).unwrap();
        file.replace(b"before").unwrap();
        // As if syncing the folder failed after the new content was in place.
        file.replace(b"after").unwrap();
        file.restore(Some(b"before")).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"before");
        file.restore(None).unwrap();
        assert!(!file.path().exists());
    }

    #[test]
    fn each_receiver_has_a_lock_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let locks = || std::fs::read_dir(folder.path()).unwrap().count();
        let first = JournalFile::for_receiver(folder.path()).unwrap();
        let second = JournalFile::for_receiver(folder.path()).unwrap();
        assert_ne!(first.path(), second.path());
        assert_eq!(locks(), 2);
        drop((first, second));
        assert_eq!(locks(), 0);
    }

    #[test]
    fn a_removed_lock_file_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("source-1-1.json");
        let first = JournalFile::lock(&path).unwrap();
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                // Until it has the lock, however long that takes on a busy host.
                loop {
                    match JournalFile::lock(&path) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        file => break file.unwrap(),
                    }
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(first);
            second.join().unwrap()
        });
        // It holds the file that is there now, so that a third process has to wait.
        let error = JournalFile::lock(&path).unwrap_err().to_string();
        assert!(error.contains("another hikkoshi"), "{error}");
        drop(second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
