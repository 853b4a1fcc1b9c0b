//! Nobody else works on a guest's memory.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use hikkoshi_engine::RamFiles;
use hikkoshi_faults::Process;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::maps;
use crate::process;

/// How long another program may take to let go: one that was killed may not be
/// gone altogether yet.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(20);

/// The guest could not be had for ourselves.
#[derive(Debug, Error)]
pub enum OccupyError {
    /// Another program has it.
    #[error(
        "another hikkoshi is at work on this guest (it has locked its memory's first file): wait \
         for its end"
    )]
    Busy,
    /// The file system does not want to.
    #[error("locking the first file of the guest's memory: {0}")]
    Lock(io::Error),
}

/// Keeps other engines away from the guest, wherever their journals are, until
/// these files are closed.
pub(crate) fn occupy(ram: &RamFiles) -> Result<(), OccupyError> {
    let Some(first) = ram.files().first() else {
        return Ok(());
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match flock(first.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(AGAIN),
            Err(Errno::WOULDBLOCK) => return Err(OccupyError::Busy),
            Err(Errno::INTR) => {}
            Err(error) => return Err(OccupyError::Lock(error.into())),
        }
    }
}

/// Another process that has a file mapped: its number and its name.
///
/// A process that we may not look into is passed over: the QEMU that has ended
/// was looked into by the same user, and another one started like it can be, too.
pub(crate) fn mapped_by(device: u64, inode: u64) -> io::Result<Option<(u32, String)>> {
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
    use hikkoshi_engine::RamFile;
    use hikkoshi_pages::{GuestRange, RamBlock, RamLayout};
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};
    use vm_memory::{FileOffset, MmapRegion};

    const PATH: &str = "HIKKOSHI_TEST_MAP";

    fn ram(path: &std::path::Path) -> RamFiles {
        let file = File::options().read(true).open(path).unwrap();
        let block = RamBlock {
            id: "ram".into(),
            bytes: 4096,
            host_page: 4096,
            guest: vec![GuestRange {
                gpa: 0,
                offset: 0,
                bytes: 4096,
            }],
        };
        let layout = RamLayout::new(vec![block]).unwrap();
        RamFiles::new(layout, vec![RamFile::new(file, 0)]).unwrap()
    }

    #[test]
    fn one_at_a_time_until_the_files_are_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let (one, other) = (ram(file.path()), ram(file.path()));
        occupy(&one).unwrap();
        // By whatever path.
        let error = occupy(&other).unwrap_err();
        assert!(matches!(error, OccupyError::Busy), "{error}");
        drop(one);
        occupy(&other).unwrap();
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
        let mapped_by = || mapped_by(stat.dev(), stat.ino()).unwrap();
        assert_eq!(mapped_by(), None);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "alone::tests::another_process", "--nocapture"])
            .env(PATH, file.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.map(Result::unwrap).any(|line| line == "MAPPED"));
        let found = mapped_by().map(|(pid, _)| pid);
        assert_eq!(found, Some(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(mapped_by(), None);
    }
}
