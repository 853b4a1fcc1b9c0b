//! Nobody else works on a guest.
//!
//! An engine locks (`flock`) the memory of QEMU's process, `/proc/PID/mem`. To
//! open that takes the right to trace the process, which an engine needs and a
//! stranger does not have. The RAM file would not do: QEMU makes it readable by
//! everybody, and whoever may read a file may lock it. Nor would a file in the
//! journal's folder: engines with other folders, or of other users, would not see
//! it. The lock goes with the engine, or with QEMU, and leaves nothing behind.
//!
//! Two engines that see different `/proc` mounts (one of them in a container with
//! a mount of its own) do not see each other's lock.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use hikkoshi_linux::Process;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::attach::maps;
use crate::attach::process;

/// How long another program may take to let go: one that was killed may not be
/// gone altogether yet.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The guest could not be had for ourselves.
#[derive(Debug, Error)]
pub enum ExclusiveAccessError {
    /// Another program has it.
    #[error(
        "another hikkoshi is at work on this guest (it has locked the memory of QEMU's process \
         {pid}): wait for its end"
    )]
    Busy {
        /// QEMU's process.
        pid: u32,
    },
    /// It cannot be locked.
    #[error("locking the memory of QEMU's process {pid} against other engines: {source}")]
    Lock {
        /// QEMU's process.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Keeps other engines away from a guest, wherever their journals are, until it is
/// dropped.
#[derive(Debug)]
#[must_use = "dropping it lets other engines in"]
pub(crate) struct ExclusiveAccess(#[allow(dead_code)] File);

/// Waits a little for the guest of this process, and takes hold of it.
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

/// Another process that has a file mapped: its number and its name.
///
/// A process that we may not look into is passed over: the QEMU that has ended
/// was looked into by the same user, and another one started like it can be, too.
pub(crate) fn find_user(device: u64, inode: u64) -> io::Result<Option<(u32, String)>> {
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let mappings = match File::open(format!("/proc/{pid}/maps")).and_then(maps::read) {
            Ok(mappings) => mappings,
            Err(error) if has_ended(&error) => continue,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::debug!(pid, %error, "a process that may not be looked into");
                continue;
            }
            Err(error) => {
                let what = format!("reading the memory map of process {pid}: {error}");
                return Err(io::Error::new(error.kind(), what));
            }
        };
        if mappings
            .iter()
            .any(|m| (m.device, m.inode) == (device, inode))
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
    fn one_at_a_time_and_only_who_may_trace_it() {
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
        // A stranger cannot even try, where we are not one ourselves.
        if rustix::process::geteuid().is_root() {
            let stranger = Command::new("setpriv")
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
            let said = String::from_utf8_lossy(&stranger.stderr);
            assert!(said.contains("Permission denied"), "{said}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let error = acquire(&one).unwrap_err();
        assert!(
            matches!(error, ExclusiveAccessError::Lock { .. }),
            "{error}"
        );
    }

    /// The other process: a copy of this program that maps a file, says so, and
    /// waits for its end.
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
    fn who_has_a_file_mapped_is_found() {
        // On tmpfs, whose numbers `stat` and the map give alike. It is there to
        // the end: a removed file's number is used again.
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(4096).unwrap();
        let stat = file.as_file().metadata().unwrap();
        let find_user = || find_user(stat.dev(), stat.ino()).unwrap();
        assert_eq!(find_user(), None);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "attach::exclusive_access::tests::another_process",
                "--nocapture",
            ])
            .env(PATH, file.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.map(Result::unwrap).any(|line| line == "MAPPED"));
        let found = find_user().map(|(pid, _)| pid);
        assert_eq!(found, Some(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find_user(), None);
    }
}
