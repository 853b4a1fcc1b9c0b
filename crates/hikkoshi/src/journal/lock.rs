//! The lock of a journal: a file beside it, held by the process that works with the journal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use error_reporter::Report;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::permissions;

/// How long to wait for another process that holds the lock.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for a guard that holds the lock: it restores the guest and ends. It waits for
/// QEMU's monitor, and QEMU has to notice first that the previous client has disconnected.
const GUARD_TIMEOUT: Duration = Duration::from_secs(60);

/// What a guard writes into the lock that it holds.
const GUARD: &str = "guard";

/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The time between two attempts while a process only looks whether the lock is held, which it does
/// for microseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// How often to try again because of such processes.
const LOOKS: u32 = 50;

/// The process that holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockHolder {
    /// One that moves the guest: that can take long.
    Engine,
    /// A guard, which restores the guest and ends.
    Guard,
}

/// A lock that this process holds.
#[derive(Debug)]
pub(super) struct JournalLock {
    file: File,
    path: PathBuf,
}

impl JournalLock {
    /// Waits for the lock of `journal`.
    ///
    /// # Errors
    /// `WouldBlock` when another process still holds it after a short while.
    pub(super) fn acquire(journal: &Path) -> io::Result<Self> {
        let begun = Instant::now();
        loop {
            match Self::try_acquire(journal)? {
                Some(lock) => return Ok(lock),
                None if begun.elapsed() < timeout(journal) => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                None => {
                    return Err(io::Error::new(
                        io::ErrorKind::WouldBlock,
                        "another hikkoshi is working on this migration: wait until it ends",
                    ));
                }
            }
        }
    }

    /// `None` while another process holds it.
    pub(super) fn try_acquire(journal: &Path) -> io::Result<Option<Self>> {
        let path = path_of(journal);
        let file = match inherited(&path) {
            Some(file) => file,
            None => OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(&path)?,
        };
        let mut looks = 0;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if looks < LOOKS && !is_exclusive(&file)? => looks += 1,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        // The previous holder may have removed the file. Another process then creates and locks a
        // new one, so that this lock protects nothing.
        let lock = Self { file, path };
        Ok(lock.is_in_place()?.then_some(lock))
    }

    /// A descriptor for the standard input of a process that works with the journal from now on: it
    /// holds the lock, too, and takes it over ([`inherited`]).
    pub(super) fn to_pass_on(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Records who holds the lock, for waiting processes.
    pub(super) fn mark(&self, holder: LockHolder) {
        let text = match holder {
            LockHolder::Engine => "",
            LockHolder::Guard => GUARD,
        };
        let written = self.file.set_len(0);
        if let Err(error) = written.and_then(|()| (&self.file).write_all(text.as_bytes())) {
            // Other processes wait for a shorter time then.
            tracing::debug!(error = %Report::new(&error), "marking a lock");
        }
    }

    /// Removes the file while the lock is held, unless another process has replaced it.
    pub(super) fn remove(&self) -> io::Result<()> {
        if self.is_in_place()? {
            std::fs::remove_file(&self.path)?;
        }
        Ok(())
    }

    /// Whether this file still has that name.
    fn is_in_place(&self) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        let there = std::fs::symlink_metadata(&self.path);
        Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
    }
}

/// The lock file at `path`, if it is this process's standard input: the process that has started
/// this one has passed its lock on. Afterwards the standard input is empty: the lock is held as
/// long as the returned file is open.
fn inherited(path: &Path) -> Option<File> {
    let given = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    let (ours, there) = (
        given.metadata().ok()?,
        std::fs::symlink_metadata(path).ok()?,
    );
    if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
        return None;
    }
    let closed = File::open("/dev/null").and_then(|null| Ok(rustix::stdio::dup2_stdin(&null)?));
    if let Err(error) = closed {
        // Then it is held until this process ends.
        tracing::debug!(error = %Report::new(&error), "closing the standard input");
    }
    Some(given)
}

/// Whether a process works with `journal`. Makes no lock file.
pub(crate) fn is_held(journal: &Path) -> io::Result<bool> {
    let file = match permissions::open(&path_of(journal)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    is_exclusive(&file)
}

/// Whether a process works with the journal of this lock file, which has it exclusively. Others
/// that look do so by a shared lock, so that a process which wants it can tell them apart.
fn is_exclusive(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            flock(file, FlockOperation::Unlock)?;
            Ok(false)
        }
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// The lock file of a journal.
fn path_of(journal: &Path) -> PathBuf {
    journal.with_extension("lock")
}

/// How long to wait for the current holder.
fn timeout(journal: &Path) -> Duration {
    let longest = u64::try_from(GUARD.len()).unwrap_or(u64::MAX);
    let text =
        permissions::open(&path_of(journal)).and_then(|file| permissions::read(file, longest));
    match text {
        Ok(text) if text == GUARD.as_bytes() => GUARD_TIMEOUT,
        _ => ENGINE_TIMEOUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::process::Command;

    /// The journal whose lock the started process gets.
    const JOURNAL: &str = "HIKKOSHI_TEST_PASSED_ON";

    /// The process that gets it is this test, again.
    #[test]
    fn a_lock_that_was_passed_on_is_taken_over() {
        if let Some(journal) = env::var_os(JOURNAL) {
            let lock = JournalLock::try_acquire(Path::new(&journal)).unwrap();
            let lock = lock.unwrap().file.metadata().unwrap();
            let input = std::fs::metadata("/proc/self/fd/0").unwrap();
            assert_ne!(lock.ino(), input.ino(), "it is held twice");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal.json");
        let lock = JournalLock::try_acquire(&journal).unwrap().unwrap();
        let mut other = Command::new(env::current_exe().unwrap());
        let name = "journal::lock::tests::a_lock_that_was_passed_on_is_taken_over";
        other.args(["--exact", name]).env(JOURNAL, &journal);
        // Without it, the lock is held by another process.
        for (passes, expected) in [(false, false), (true, true)] {
            if passes {
                other.stdin(lock.to_pass_on().unwrap());
            }
            let output = other.output().unwrap();
            assert_eq!(output.status.success(), expected, "{output:?}");
        }
        assert!(is_held(&journal).unwrap());
    }

    /// As `status --watch` does each second.
    #[test]
    fn a_process_that_looks_keeps_no_other_from_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal.json");
        drop(JournalLock::try_acquire(&journal).unwrap().unwrap());
        let looking = File::open(path_of(&journal)).unwrap();
        flock(&looking, FlockOperation::LockShared).unwrap();
        let looks = std::thread::spawn(move || {
            std::thread::sleep(5 * LOOK_INTERVAL);
            drop(looking);
        });
        let lock = JournalLock::try_acquire(&journal).unwrap();
        looks.join().unwrap();
        assert!(lock.is_some());
        assert!(is_held(&journal).unwrap());
        assert!(JournalLock::try_acquire(&journal).unwrap().is_none());
        drop(lock);
        assert!(!is_held(&journal).unwrap());
    }
}
