//! Whether the kernel has ended a process for lack of memory.
//!
//! The kernel counts the processes that it has killed, for each memory cgroup (version 1: since
//! Linux 4.13 in `memory.oom_control`; version 2: in `memory.events`, which includes the cgroups
//! below), and for the host (`oom_kill` in `/proc/vmstat`). It counts before it kills. So counters
//! that are compared before and after tell why a process has ended.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroups::cgroups_of;
use crate::process::Process;

/// The counter of the host.
const HOST: &str = "/proc/vmstat";

/// Files of numbers have a few lines; `/proc/vmstat` has some 6 KiB.
const MAX_BYTES: usize = 16 << 10;

/// The counters of killed processes at some time, for one process.
#[derive(Debug)]
pub struct OomKills {
    counters: Vec<Counter>,
}

/// A counter of killed processes at some time. Another program of the same boot can compare it with
/// the present one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OomKillCount {
    /// The file with the counter.
    pub file: PathBuf,
    /// Its inode number. A cgroup that was removed and made again has another one, and counts from
    /// 0.
    pub inode: u64,
    /// How many processes the kernel had killed.
    pub killed: u64,
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
    before: OomKillCount,
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
            cgroup.folder.join(match cgroup.unified {
                true => "memory.events",
                false => "memory.oom_control",
            })
        });
        let counters = cgroups.chain([HOST.into()]).filter_map(Counter::read);
        Ok(Self {
            counters: counters.collect(),
        })
    }

    /// The counters that another program has read with [`count`](Self::count) in this boot. Those
    /// of cgroups that were removed since do not count.
    pub fn counted(before: &[OomKillCount]) -> Self {
        let reopened = |before: &OomKillCount| {
            let now = Counter::read(before.file.clone())?;
            (now.before.inode == before.inode).then(|| Counter {
                file: now.file,
                before: before.clone(),
            })
        };
        Self {
            counters: before.iter().filter_map(reopened).collect(),
        }
    }

    /// The counters as they were read, for another program.
    pub fn counts(&self) -> Vec<OomKillCount> {
        let counters = self.counters.iter();
        counters.map(|counter| counter.before.clone()).collect()
    }

    /// The innermost place where the kernel has killed a process since.
    pub fn since(&self) -> Option<OomKill> {
        let mut counters = self.counters.iter();
        let rises = |counter: &&Counter| killed(&counter.file) > Some(counter.before.killed);
        Some(counters.find(rises)?.before.place())
    }
}

impl Counter {
    /// `None`: it cannot be read.
    fn read(path: PathBuf) -> Option<Self> {
        let file = File::open(&path).ok()?;
        let before = OomKillCount {
            inode: file.metadata().ok()?.ino(),
            killed: killed(&file)?,
            file: path,
        };
        Some(Self { file, before })
    }
}

impl OomKillCount {
    /// What it counts for.
    fn place(&self) -> OomKill {
        match self.file.parent() {
            Some(folder) if self.file != Path::new(HOST) => OomKill::Cgroup(folder.to_owned()),
            _ => OomKill::Host,
        }
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

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn counted(files: &[&PathBuf]) -> OomKills {
        let read = |path: &&PathBuf| Counter::read((*path).clone()).unwrap();
        OomKills {
            counters: files.iter().map(read).collect(),
        }
    }

    #[test]
    fn the_innermost_counter_that_has_risen_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("outer/inner/memory.oom_control");
        let outer = folder.path().join("outer/memory.events");
        write(&inner, "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
        write(&outer, "max 12\noom 0\noom_kill 0\noom_group_kill 9\n");
        let kills = counted(&[&inner, &outer]);
        let of = |path: &Path| Some(OomKill::Cgroup(path.parent().unwrap().to_owned()));
        assert_eq!(kills.since(), None);
        write(&outer, "max 12\noom 1\noom_kill 1\noom_group_kill 9\n");
        assert_eq!(kills.since(), of(&outer));
        write(&inner, "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
        assert_eq!(kills.since(), of(&inner));
    }

    #[test]
    fn another_program_compares_with_what_was_counted_before() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("outer/inner/memory.events");
        let outer = folder.path().join("outer/memory.events");
        write(&inner, "oom_kill 3\n");
        write(&outer, "oom_kill 3\n");
        let before = counted(&[&inner, &outer]).counts();
        let since = || OomKills::counted(&before).since();
        assert_eq!(since(), None);
        write(&inner, "oom_kill 4\n");
        write(&outer, "oom_kill 4\n");
        let place = |path: &Path| Some(OomKill::Cgroup(path.parent().unwrap().to_owned()));
        assert_eq!(since(), place(&inner));
        // Of another cgroup with this name nothing is known.
        std::fs::rename(&inner, inner.with_extension("old")).unwrap();
        write(&inner, "oom_kill 9\n");
        assert_eq!(since(), place(&outer));
    }

    #[test]
    fn the_host_counts_killed_processes() {
        let own = Process::open(std::process::id()).unwrap();
        let counts = OomKills::count(&own).unwrap().counts();
        assert_eq!(counts.last().unwrap().place(), OomKill::Host);
    }
}
