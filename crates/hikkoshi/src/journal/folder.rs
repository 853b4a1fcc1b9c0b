//! The folder of journals.

use std::io;
use std::path::{Path, PathBuf};

use super::entry::{DestinationEntry, JournalEntry, SourceEntry};
use super::file::{self, JournalFile};
use super::paths::absolute;
use super::permissions;
use crate::args::NamedGuest;
use error_reporter::Report;
use hikkoshi_qemu::qmp::MonitorAddress;

/// Whether this user has no right to read `folder`.
pub(crate) fn is_hidden(folder: &Path) -> bool {
    let files = std::fs::read_dir(absolute(folder));
    files.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The journals of one side in `folder`, the newest first; with `guest`, only those of the guest
/// that is named so. Files that cannot be read are logged and left out.
///
/// # Errors
/// When the folder cannot be read, or others may write to it.
pub(crate) fn find<E: JournalEntry>(
    folder: &Path,
    guest: Option<&NamedGuest>,
) -> io::Result<Vec<(PathBuf, E)>> {
    let FoundJournals { readable, others } = search(folder, guest)?;
    for (_, error) in others {
        tracing::warn!(error = %Report::new(&error), "ignoring a journal that cannot be read");
    }
    Ok(readable)
}

/// The journals of one side.
#[derive(Debug)]
pub(crate) struct FoundJournals<E> {
    /// Those that can be read, the newest first.
    pub(crate) readable: Vec<(PathBuf, E)>,
    /// The paths of the others, and why. They may be of any guest.
    pub(crate) others: Vec<(PathBuf, io::Error)>,
}

/// The journals of one side in `folder`, the newest first, or only those of the guest that is named
/// so, and the files that cannot be read.
///
/// # Errors
/// When the folder cannot be read, or others may write to it.
pub(crate) fn search<E: JournalEntry>(
    folder: &Path,
    guest: Option<&NamedGuest>,
) -> io::Result<FoundJournals<E>> {
    let mut others = Vec::new();
    let folder = absolute(folder);
    let files = match std::fs::read_dir(&folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let readable = Vec::new();
            return Ok(FoundJournals { readable, others });
        }
        Err(error) => return Err(file::about(&folder, &error)),
    };
    permissions::check_folder(&folder)?;
    remove_stale_locks(&folder);
    let mut found = Vec::new();
    for path in files.filter_map(|file| Some(file.ok()?.path())) {
        if !is_journal::<E>(&path) {
            continue;
        }
        match file::read::<E>(&path) {
            Ok(Some(entry))
                if guest.is_none_or(|guest| names(guest, &entry.identity().monitor)) =>
            {
                let written = std::fs::metadata(&path).and_then(|m| m.modified());
                found.push((written.ok(), path, entry));
            }
            Ok(_) => {}
            Err(error) => others.push((path, error)),
        }
    }
    found.sort_by_key(|(written, ..)| std::cmp::Reverse(*written));
    let readable = found.into_iter().map(|(_, path, entry)| (path, entry));
    Ok(FoundJournals {
        readable: readable.collect(),
        others,
    })
}

/// A journal of one side in `folder` that cannot be read, such as one of another version.
pub(crate) fn unreadable<E: JournalEntry>(folder: &Path) -> Option<(PathBuf, io::Error)> {
    let files = std::fs::read_dir(absolute(folder)).ok()?;
    files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| is_journal::<E>(path))
        .find_map(|path| {
            let error = file::read::<E>(&path).err()?;
            Some((path, error))
        })
}

/// The number of the QEMU process that a journal of this side is of, by the name of its file.
pub(crate) fn owner<E: JournalEntry>(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix(E::SIDE)?;
    name.strip_prefix('-')?.split('-').next()?.parse().ok()
}

/// Whether a file has the name of a journal of this side.
fn is_journal<E: JournalEntry>(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(E::SIDE))
        && path.extension().is_some_and(|e| e == "json")
}

/// Removes lock files that no process holds and that have no journal: an engine was killed before
/// it wrote one, or an administrator removed the journal.
fn remove_stale_locks(folder: &Path) {
    let Ok(files) = std::fs::read_dir(folder) else {
        return;
    };
    for lock in files.filter_map(|file| Some(file.ok()?.path())) {
        let name = lock.file_name().and_then(|name| name.to_str());
        let is_lock = name.is_some_and(|name| {
            (name.starts_with(SourceEntry::SIDE) || name.starts_with(DestinationEntry::SIDE))
                && lock.extension().is_some_and(|e| e == "lock")
        });
        let journal = lock.with_extension("json");
        if is_lock
            && let Ok(false) = journal.try_exists()
            && let Ok(Some(file)) = JournalFile::try_lock(&journal)
        {
            // Dropping it removes the lock file.
            drop(file);
        }
    }
}

/// Whether the command line means the guest whose monitor is at this address.
fn names(guest: &NamedGuest, monitor: &MonitorAddress) -> bool {
    match (guest, monitor) {
        (NamedGuest::Socket(one), MonitorAddress::Socket(other)) => is_same(one, other),
        (
            NamedGuest::Domain { name, .. },
            MonitorAddress::Domain {
                uuid,
                name: recorded,
                ..
            },
        ) => name == recorded || name.eq_ignore_ascii_case(uuid),
        _ => false,
    }
}

/// Whether both paths lead to the same socket.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    absolute(one) == absolute(other) || real(one).is_some_and(|one| Some(one) == real(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_the_same_by_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::fs::write(real.join("qmp"), "").unwrap();
        assert!(is_same(&real.join("qmp"), &link.join("qmp")));
        assert!(is_same(Path::new("/gone/qmp"), Path::new("/gone/./qmp")));
        assert!(!is_same(&real.join("qmp"), &link.join("other")));
    }

    #[test]
    fn stale_locks_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let stale = folder.path().join("destination-1-2.lock");
        let other = folder.path().join("other.lock");
        for path in [&stale, &other] {
            std::fs::write(path, "").unwrap();
        }
        // An engine that has not written a journal yet.
        let held = JournalFile::lock(&folder.path().join("source-3-4.json")).unwrap();
        find::<SourceEntry>(folder.path(), None).unwrap();
        assert!(!stale.exists() && other.exists());
        assert!(folder.path().join("source-3-4.lock").exists());
        drop(held);
    }
}
