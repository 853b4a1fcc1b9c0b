//! Exclusive access to a guest: at most one engine migrates it, or measures it, at a time.
//!
//! An engine locks (`flock`) the memory of QEMU's process, `/proc/PID/mem`. Opening
//! that file requires the right to trace the process. An engine needs this right
//! anyway, and other users do not have it. The RAM file is not suitable: QEMU makes
//! it readable for all users, and every user who may read a file may lock it. A
//! file in the journal's folder is not suitable either: engines with another
//! folder, or of another user, would not see it. The kernel releases the lock when
//! the engine or QEMU ends.
//!
//! Two engines that use different `/proc` mounts (for example, one of them in a
//! container with its own mount) do not see each other's lock.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::Process;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::process;
use crate::process::maps;

/// How long to wait for another process to release the lock. A killed process may
/// not have ended completely yet.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Exclusive access was not obtained.
#[derive(Debug, Error)]
pub enum ExclusiveAccessError {
    /// Another process has it.
    #[error(
        "another hikkoshi process is migrating this guest, or measuring it (it has locked the memory \
         of QEMU's process {pid}): wait until it ends"
    )]
    Busy {
        /// QEMU's process.
        pid: u32,
    },
    /// Locking failed.
    #[error("locking the memory of QEMU's process {pid} for exclusive access")]
    Lock {
        /// QEMU's process.
        pid: u32,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Exclusive access to a guest, held until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub(crate) struct ExclusiveAccess(#[allow(dead_code)] File);

/// Obtains exclusive access to the guest of this process. Waits briefly.
pub(crate) fn acquire(process: &Process) -> Result<ExclusiveAccess, ExclusiveAccessError> {
    let pid = process.pid();
    let cannot = |source| ExclusiveAccessError::Lock { pid, source };
    let memory = process.open_proc("mem").map_err(cannot)?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&memory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(ExclusiveAccess(memory)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(RETRY_INTERVAL)
            }
            Err(Errno::WOULDBLOCK) => return Err(ExclusiveAccessError::Busy { pid }),
            Err(Errno::INTR) => {}
            Err(error) => return Err(cannot(error.into())),
        }
    }
}

/// Checks that no other process has exclusive access now. The shared lock that this takes
/// is released at once; an engine that attaches meanwhile tries again.
pub(crate) fn check(process: &Process) -> Result<(), ExclusiveAccessError> {
    let pid = process.pid();
    let cannot = |source| ExclusiveAccessError::Lock { pid, source };
    let memory = process.open_proc("mem").map_err(cannot)?;
    match flock(&memory, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(ExclusiveAccessError::Busy { pid }),
        Err(error) => Err(cannot(error.into())),
    }
}

/// Finds another process that has this file mapped, and is not the process `except`: its number and
/// its name. QEMU's `async-teardown` starts a process that shares all of QEMU's memory and only
/// waits for its end: that one is not another process either.
///
/// Processes that we may not examine are skipped. The same user was able to
/// examine the QEMU that has ended, and so can examine another one that was
/// started in the same way.
pub(crate) fn find_user(
    device: u64,
    inode: u64,
    except: Option<&Process>,
) -> io::Result<Option<(u32, String)>> {
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() || except.is_some_and(|except| except.pid() == pid) {
            continue;
        }
        let mappings = match File::open(format!("/proc/{pid}/maps")).and_then(maps::read) {
            Ok(mappings) => mappings,
            Err(error) if has_ended(&error) => continue,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::debug!(pid, error = %Report::new(&error), "skipping a process that may not be examined");
                continue;
            }
            Err(error) => {
                let what = format!(
                    "reading the memory map of process {pid}: {}",
                    Report::new(&error)
                );
                return Err(io::Error::new(error.kind(), what));
            }
        };
        if mappings
            .iter()
            .any(|m| (m.device, m.inode) == (device, inode))
            && !except.is_some_and(|except| except.shares_memory_with(pid).unwrap_or(false))
        {
            let held = Process::open(pid);
            let name = held.map_or_else(|_| "?".to_owned(), |held| process::name(&held));
            return Ok(Some((pid, name)));
        }
    }
    Ok(None)
}

fn has_ended(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};
    use vm_memory::{FileOffset, MmapRegion};

    const PATH: &str = "HIKKOSHI_TEST_MAP";

    #[test]
    fn one_holder_at_a_time_with_the_right_to_trace() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (one, other) = (child.id(), child.id());
        let [one, other] = [one, other].map(|pid| Process::open(pid).unwrap());
        let lock = acquire(&one).unwrap();
        let error = acquire(&other).unwrap_err();
        assert!(
            matches!(error, ExclusiveAccessError::Busy { .. }),
            "{error}"
        );
        drop(lock);
        let lock = acquire(&other).unwrap();
        drop(lock);
        // Another user cannot even open the file. Only root can run this check.
        if rustix::process::geteuid().is_root() {
            let other_user = Command::new("setpriv")
                .args([
                    "--reuid=65534",
                    "--regid=65534",
                    "--clear-groups",
                    "flock",
                    "-n",
                ])
                .arg(format!("/proc/{}/mem", child.id()))
                .arg("true")
                .output()
                .unwrap();
            let message = String::from_utf8_lossy(&other_user.stderr);
            assert!(message.contains("Permission denied"), "{message}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let error = acquire(&one).unwrap_err();
        assert!(
            matches!(error, ExclusiveAccessError::Lock { .. }),
            "{error}"
        );
    }

    /// The other process: a copy of this program that maps a file, prints a line,
    /// and waits for the end of its standard input.
    #[test]
    fn another_process() {
        let Some(path) = std::env::var_os(PATH) else {
            return;
        };
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mapped = MmapRegion::<()>::from_file(FileOffset::new(file, 0), 4096).unwrap();
        println!("\nMAPPED");
        io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
        drop(mapped);
    }

    #[test]
    fn a_process_that_maps_the_file_is_found() {
        // On tmpfs, where `stat` and the memory map report the same numbers. The
        // file exists until the end: the number of a removed file is used again.
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(4096).unwrap();
        let stat = file.as_file().metadata().unwrap();
        let find_user = || find_user(stat.dev(), stat.ino(), None).unwrap();
        assert_eq!(find_user(), None);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "process::exclusive_access::tests::another_process",
                "--nocapture",
            ])
            .env(PATH, file.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line == "MAPPED"));
        let found = find_user().map(|(pid, _)| pid);
        assert_eq!(found, Some(child.id()));
        let except = Process::open(child.id()).unwrap();
        let except = super::find_user(stat.dev(), stat.ino(), Some(&except));
        assert_eq!(except.unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find_user(), None);
    }
}
