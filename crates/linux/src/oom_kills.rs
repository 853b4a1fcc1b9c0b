//! Whether the kernel has ended a process for lack of memory.
//!
//! The kernel counts the processes that it has killed, for each memory cgroup (version 1: since
//! Linux 4.13 in `memory.oom_control`; version 2: in `memory.events`, which includes the cgroups
//! below), and for the host (`oom_kill` in `/proc/vmstat`). It counts before it kills. So counters
//! that are compared before and after tell why a process has ended.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::cgroups::cgroups_of;
use crate::process::Process;

/// Files of numbers have a few lines; `/proc/vmstat` has some 6 KiB.
const MAX_BYTES: usize = 16 << 10;

/// The counters of killed processes at some time, for one process.
#[derive(Debug)]
pub struct OomKills {
    counters: Vec<Counter>,
}

/// Where the kernel has killed a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OomKill {
    /// In a memory cgroup, which is this folder, at its limit or that of the host.
    Cgroup(PathBuf),
    /// Somewhere on the host.
    Host,
}

impl fmt::Display for OomKill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel has killed a process of ")?;
        match self {
            Self::Cgroup(folder) => write!(f, "its cgroup {}", folder.display())?,
            Self::Host => f.write_str("this host")?,
        }
        f.write_str(" for lack of memory meanwhile")
    }
}

#[derive(Debug)]
struct Counter {
    /// Opened before: the cgroup may be removed when its last process has ended. Its file cannot be
    /// read then, but that of the cgroup above.
    file: File,
    place: OomKill,
    before: u64,
}

impl OomKills {
    /// Reads the counters for `process`.
    ///
    /// # Errors
    ///
    /// As reading `/proc/PID/cgroup`. Counters that cannot be read do not count.
    pub fn count(process: &Process) -> io::Result<Self> {
        let cgroups = cgroups_of(process, "memory")?.seen;
        let cgroups = cgroups.into_iter().map(|cgroup| {
            let name = match cgroup.unified {
                true => "memory.events",
                false => "memory.oom_control",
            };
            (cgroup.folder.join(name), OomKill::Cgroup(cgroup.folder))
        });
        let host = (PathBuf::from("/proc/vmstat"), OomKill::Host);
        let counters = cgroups.chain([host]).filter_map(|(path, place)| {
            let file = File::open(path).ok()?;
            let before = killed(&file)?;
            Some(Counter {
                file,
                place,
                before,
            })
        });
        Ok(Self {
            counters: counters.collect(),
        })
    }

    /// The innermost place where the kernel has killed a process since.
    pub fn since(&self) -> Option<OomKill> {
        let mut counters = self.counters.iter();
        let rises = |counter: &&Counter| killed(&counter.file) > Some(counter.before);
        Some(counters.find(rises)?.place.clone())
    }
}

fn killed(file: &File) -> Option<u64> {
    let mut text = vec![0; MAX_BYTES];
    let mut length = 0;
    while let Some(rest) = text.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    let text = String::from_utf8_lossy(text.get(..length)?);
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn counter(path: &Path, place: OomKill) -> Counter {
        let file = File::open(path).unwrap();
        let before = killed(&file).unwrap();
        Counter {
            file,
            place,
            before,
        }
    }

    #[test]
    fn the_innermost_counter_that_has_risen_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("memory.oom_control");
        let outer = folder.path().join("memory.events");
        let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
        write(&inner, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write(&outer, "max 12\noom 0\noom_kill 0\noom_group_kill 9\n");
        let kills = OomKills {
            counters: vec![
                counter(&inner, OomKill::Cgroup("/inner".into())),
                counter(&outer, OomKill::Cgroup("/outer".into())),
            ],
        };
        assert_eq!(kills.since(), None);
        write(&outer, "max 12\noom 1\noom_kill 1\noom_group_kill 9\n");
        assert_eq!(kills.since(), Some(OomKill::Cgroup("/outer".into())));
        write(&inner, "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
        assert_eq!(kills.since(), Some(OomKill::Cgroup("/inner".into())));
    }

    #[test]
    fn the_host_counts_killed_processes() {
        let own = Process::open(std::process::id()).unwrap();
        let kills = OomKills::count(&own).unwrap();
        assert!(
            kills
                .counters
                .iter()
                .any(|counter| counter.place == OomKill::Host)
        );
    }
}
