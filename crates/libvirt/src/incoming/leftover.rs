//! What a killed program has left of a domain that it was creating.
//!
//! A pipe belongs to the program that has locked it (`flock`), or, until libvirt has opened it, to
//! the program that creates the domain ([`lock`]). Otherwise no program creates a domain from it,
//! and its guest has not run: when it runs, the pipe is removed, or
//! there is a journal, and the guest is refused before this is called.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hikkoshi_qemu::StreamPipe;
use hikkoshi_wire::Domain as DomainOffer;
use virt::domain::Domain;

use super::error::{IncomingError, pipe_error};
use crate::call::CallError;
use crate::connection::Connection;
use crate::daemon::ATTEMPT_TIMEOUT;
use crate::{DomainError, process};

/// How long libvirt may take to notice that a QEMU has ended.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// A pipe for the domain that no other program uses.
pub(super) fn new_path(folder: &Path, uuid: &str) -> PathBuf {
    let mut numbers = 0..;
    loop {
        let number: u32 = numbers.next().unwrap_or(u32::MAX);
        let name = format!("{}{}-{number}.stream", prefix(uuid), std::process::id());
        let path = folder.join(name);
        if !path.exists() {
            return path;
        }
    }
}

/// Where a pipe is while the one at `path` waits for the next program that opens it.
pub(super) fn aside(path: &Path) -> PathBuf {
    path.with_extension("opened.stream")
}

fn prefix(uuid: &str) -> String {
    format!("domain-{uuid}-")
}

/// Held while a program creates the domain: a pipe that waits to be opened has no lock of its own.
#[derive(Debug)]
pub(super) struct CreationLock {
    path: PathBuf,
    _file: File,
}

/// Takes the lock. `None`: another program holds it.
pub(super) fn lock(folder: &Path, uuid: &str) -> io::Result<Option<CreationLock>> {
    let path = folder.join(format!("domain-{uuid}.lock"));
    loop {
        let mut options = File::options();
        options.create(true).append(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        // The program that held it may have removed this file meanwhile.
        let (locked, there) = (file.metadata()?, std::fs::symlink_metadata(&path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino())) {
            return Ok(Some(CreationLock { path, _file: file }));
        }
    }
}

impl Drop for CreationLock {
    /// While it is held, so that nobody removes another's.
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "removing a lock");
        }
    }
}

/// Ends what is left of the domain, and refuses one that runs, or was saved here.
pub(super) fn end(
    uri: &str,
    offer: &DomainOffer,
    folder: &Path,
    run_folder: &Path,
) -> Result<(), IncomingError> {
    let mut is_left = false;
    for path in pipes(folder, &offer.uuid).map_err(|source| pipe_error(folder, source))? {
        let failed = |source| pipe_error(&path, source);
        // Another program is creating the domain: libvirt refuses a second one.
        let Some(pipe) = open_unused(&path).map_err(failed)? else {
            continue;
        };
        let pipe = StreamPipe::of_file(&path, pipe).map_err(failed)?;
        is_left = true;
        if let Ok(process) = process::find(run_folder, &offer.name, &offer.uuid)
            && pipe.is_stream_of(&process).unwrap_or_default()
        {
            tracing::warn!(
                name = offer.name,
                "ending what a killed hikkoshi has left of the domain, whose guest has never run here"
            );
            process.kill().map_err(failed)?;
        }
        drop(pipe);
    }
    let connection = Connection::open(uri)?;
    let refused = |what: String| IncomingError::Refused {
        name: offer.name.clone(),
        what,
    };
    let asked = |error: CallError| match error {
        CallError::NoAnswer(after) => IncomingError::Domain(DomainError::NoAnswer {
            uri: uri.to_owned(),
            asked: format!("about the domain {}", offer.name),
            after,
        }),
        error => refused(format!("asking {uri} about it: {}", error.text())),
    };
    let deadline = Instant::now() + END_TIMEOUT;
    while is_active(&connection, offer).map_err(asked)? {
        let qemu = process::find(run_folder, &offer.name, &offer.uuid);
        // A QEMU whose stream has ended with a killed program ends, too.
        let stays = !is_left && qemu.is_ok_and(|process| process.is_alive());
        if stays || Instant::now() > deadline {
            return Err(refused(format!("it is active at {uri} already")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // libvirt would keep it, and restore it when the domain is started again.
    let uuid = offer.uuid.clone();
    let saved = connection.ask(ATTEMPT_TIMEOUT, move |connection| {
        Domain::lookup_by_uuid_string(connection, &uuid)?.has_managed_save(0)
    });
    match saved {
        Ok(true) => Err(IncomingError::Saved {
            name: offer.name.clone(),
            uri: uri.to_owned(),
        }),
        Ok(false) => Ok(()),
        // It is not known there: it was never persistent.
        Err(error) if error.is_no_domain() => Ok(()),
        Err(error) => Err(asked(error)),
    }
}

fn is_active(connection: &Connection, offer: &DomainOffer) -> Result<bool, CallError> {
    let (uuid, name) = (offer.uuid.clone(), offer.name.clone());
    connection.ask(ATTEMPT_TIMEOUT, move |connection| {
        let found = [
            Domain::lookup_by_uuid_string(connection, &uuid),
            Domain::lookup_by_name(connection, &name),
        ];
        let mut found = found.into_iter().flatten();
        Ok(found.any(|domain| domain.is_active().unwrap_or(true)))
    })
}

/// Opens and locks a pipe that no other program uses.
///
/// For both directions: a daemon that waits until it is opened for writing goes on, and fails.
fn open_unused(path: &Path) -> io::Result<Option<File>> {
    let nonblocking = libc::O_NONBLOCK;
    let mut options = File::options();
    let opened = options.read(true).write(true).custom_flags(nonblocking);
    let opened = opened.open(path)?;
    Ok(opened.try_lock().is_ok().then_some(opened))
}

/// Removes those of the domain's pipes that no program uses: its guest does not run here.
pub(super) fn remove_unused_pipes(folder: &Path, uuid: &str) {
    let Ok(Some(_lock)) = lock(folder, uuid) else {
        return;
    };
    for path in pipes(folder, uuid).unwrap_or_default() {
        let removed = match open_unused(&path) {
            Ok(None) => Ok(()),
            // Dropping it removes it.
            Ok(Some(file)) => StreamPipe::of_file(&path, file).map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::debug!(%error, path = %path.display(), "removing a pipe");
        }
    }
}

/// Removes the domain's pipes: its guest runs, so QEMU reads from none of them.
pub(super) fn remove_pipes(folder: &Path, uuid: &str) {
    for path in pipes(folder, uuid).unwrap_or_default() {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::debug!(%error, path = %path.display(), "removing a pipe");
        }
    }
}

fn pipes(folder: &Path, uuid: &str) -> io::Result<Vec<PathBuf>> {
    let prefix = prefix(uuid);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(&prefix) && name.ends_with(".stream")) {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_program_at_a_time_creates_a_domain() {
        let folder = tempfile::tempdir().unwrap();
        let lock = |uuid| lock(folder.path(), uuid).unwrap();
        let held = lock("a").unwrap();
        assert!(lock("a").is_none());
        assert!(lock("b").is_some());
        drop(held);
        assert!(lock("a").is_some());
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0);
    }

    /// Also while the file is removed and made again.
    #[test]
    fn two_programs_at_once_never_both_create_a_domain() {
        let folder = tempfile::tempdir().unwrap();
        let holders = AtomicU32::new(0);
        let create = || {
            let mut created = 0;
            while created < 300 {
                let Some(held) = lock(folder.path(), "a").unwrap() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                holders.fetch_sub(1, Ordering::SeqCst);
                drop(held);
                created += 1;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(create);
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
