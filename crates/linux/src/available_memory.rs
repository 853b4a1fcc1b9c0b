//! How much more memory a process can have: the host's memory, and the limits of its memory
//! cgroups.
//!
//! Memory that the kernel can take back at once (page cache) counts as available, and so does free
//! swap space: such a process becomes slow, but it is not killed.
//!
//! | | version 1 | version 2 |
//! | --- | --- | --- |
//! | limit | `memory.limit_in_bytes` | `memory.max` |
//! | used | `memory.usage_in_bytes` | `memory.current` |
//! | page cache | `total_inactive_file`, `total_active_file` | `inactive_file`, `active_file` |
//! | with swap | `memory.memsw.*` | `memory.swap.max`, `memory.swap.current` |
//!
//! (`Documentation/admin-guide/cgroup-v1/memory.rst`, `cgroup-v2.rst`.)

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::process::Process;

/// How much more memory a process can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Bytes that the host has.
    pub host: u64,
    /// Bytes that the most limited of its memory cgroups can have, and the folder of that one.
    pub cgroup: Option<(u64, PathBuf)>,
}

/// `MemAvailable` of `/proc/meminfo`, in bytes: what can be used without swapping. It does not
/// include what is reserved for huge pages.
///
/// # Errors
///
/// As reading that file.
pub fn host_memory_available() -> io::Result<u64> {
    meminfo(&std::fs::read_to_string("/proc/meminfo")?, "MemAvailable:")
}

/// How much more memory `process` can have, with swap space.
///
/// # Errors
///
/// As reading `/proc/meminfo` and `/proc/PID/cgroup`. A cgroup whose files cannot be read does not
/// count.
pub fn memory_available(process: &Process) -> io::Result<AvailableMemory> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let swap = meminfo(&info, "SwapFree:")?;
    let mut available = AvailableMemory {
        host: meminfo(&info, "MemAvailable:")?.saturating_add(swap),
        cgroup: None,
    };
    let mut cgroups = String::new();
    process.open_proc("cgroup")?.read_to_string(&mut cgroups)?;
    let mounts = File::open("/proc/self/mountinfo")?;
    for line in BufReader::new(mounts).lines() {
        let Some(hierarchy) = Hierarchy::of_mount(&line?) else {
            continue;
        };
        let Some(folder) = hierarchy.folder(&cgroups) else {
            continue;
        };
        // Each level has its own limit.
        let levels = folder
            .ancestors()
            .take_while(|level| level.starts_with(&hierarchy.mounted));
        for level in levels {
            let least = available.cgroup.as_ref().map_or(u64::MAX, |least| least.0);
            if let Some(bytes) = hierarchy.available(level, swap)
                && bytes < least
            {
                available.cgroup = Some((bytes, level.to_owned()));
            }
        }
    }
    Ok(available)
}

fn meminfo(text: &str, name: &str) -> io::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A mounted hierarchy of memory cgroups.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    unified: bool,
    /// The cgroup that is mounted, as a path in the hierarchy.
    root: PathBuf,
    mounted: PathBuf,
}

impl Hierarchy {
    /// From a line of `mountinfo` (proc_pid_mountinfo(5)).
    fn of_mount(line: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let unified = match kind {
            "cgroup2" => true,
            "cgroup" if options.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3);
        Some(Self {
            unified,
            root: mount.next()?.into(),
            mounted: mount.next()?.into(),
        })
    }

    /// The folder of the process with these lines in `/proc/PID/cgroup` (cgroups(7)).
    fn folder(&self, cgroups: &str) -> Option<PathBuf> {
        let path = cgroups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers) = (parts.next()?, parts.next()?);
            let is_it = match self.unified {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|name| name == "memory"),
            };
            parts.next().filter(|_| is_it)
        })?;
        // Outside of what we see.
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        let inside = below
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        inside.then(|| self.mounted.join(below))
    }

    /// Bytes that the cgroup can have with `swap` bytes of free swap space; `None` without a limit.
    fn available(&self, folder: &Path, swap: u64) -> Option<u64> {
        let number = |name: &str| -> Option<u64> {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse().ok()
        };
        let statistics = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cache = |names: [&str; 2]| {
            let lines = statistics.lines().filter_map(|line| line.split_once(' '));
            let ours = lines.filter(|(name, _)| names.contains(name));
            ours.filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
                .fold(0, u64::saturating_add)
        };
        if self.unified {
            let cache = cache(["inactive_file", "active_file"]);
            let used = number("memory.current")?.saturating_sub(cache);
            let memory = number("memory.max")?.saturating_sub(used);
            let swap_used = number("memory.swap.current").unwrap_or(0);
            let swap_left =
                number("memory.swap.max").map_or(swap, |most| most.saturating_sub(swap_used));
            return Some(memory.saturating_add(swap.min(swap_left)));
        }
        let cache = cache(["total_inactive_file", "total_active_file"]);
        let left = |limit: &str, used: &str| -> Option<u64> {
            Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(cache)))
        };
        let memory = left("memory.limit_in_bytes", "memory.usage_in_bytes")?.saturating_add(swap);
        let both = left("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes");
        Some(memory.min(both.unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "36 30 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2: &str = "40 30 0:33 /part /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn a_process_has_a_folder_in_each_hierarchy() {
        let v1 = Hierarchy::of_mount(V1).unwrap();
        let v2 = Hierarchy::of_mount(V2).unwrap();
        let cpu = V1.replace("rw,memory", "rw,cpu");
        assert_eq!(Hierarchy::of_mount(&cpu), None);
        assert_eq!(Hierarchy::of_mount("1 2 0:3 / / rw - ext4 /dev/a rw"), None);
        let cgroups = "4:cpuset,memory:/a/b\n3:cpu:/x\n0::/part/c\n";
        let folder = |hierarchy: &Hierarchy, text| hierarchy.folder(text);
        assert_eq!(
            folder(&v1, cgroups),
            Some("/sys/fs/cgroup/memory/a/b".into())
        );
        assert_eq!(folder(&v2, cgroups), Some("/sys/fs/cgroup/c".into()));
        // In another part of the hierarchy.
        assert_eq!(folder(&v2, "0::/other\n"), None);
        assert_eq!(folder(&v1, "4:memory:/../other\n"), None);
        assert_eq!(folder(&v1, "0::/a\n"), None);
    }

    fn cgroup(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
        }
        folder
    }

    fn available(unified: bool, files: &[(&str, &str)], swap: u64) -> Option<u64> {
        let folder = cgroup(files);
        let hierarchy = Hierarchy {
            unified,
            root: "/".into(),
            mounted: folder.path().to_owned(),
        };
        hierarchy.available(folder.path(), swap)
    }

    #[test]
    fn page_cache_and_swap_count_within_the_limits_of_version_2() {
        let limited = [
            ("memory.max", "1000"),
            ("memory.current", "900"),
            ("memory.stat", "anon 700\ninactive_file 50\nactive_file 20"),
        ];
        assert_eq!(available(true, &limited, 0), Some(170));
        assert_eq!(available(true, &limited, 40), Some(210));
        let swap = [("memory.swap.max", "30"), ("memory.swap.current", "20")];
        assert_eq!(
            available(true, &[&limited[..], &swap].concat(), 40),
            Some(180)
        );
        let free = [("memory.max", "max"), ("memory.current", "900")];
        assert_eq!(available(true, &free, 0), None);
    }

    #[test]
    fn page_cache_and_swap_count_within_the_limits_of_version_1() {
        let limited = [
            ("memory.limit_in_bytes", "1000"),
            ("memory.usage_in_bytes", "900"),
            ("memory.stat", "inactive_file 9\ntotal_inactive_file 50"),
        ];
        assert_eq!(available(false, &limited, 0), Some(150));
        assert_eq!(available(false, &limited, 40), Some(190));
        let swap = [
            ("memory.memsw.limit_in_bytes", "1010"),
            ("memory.memsw.usage_in_bytes", "900"),
        ];
        assert_eq!(
            available(false, &[&limited[..], &swap].concat(), 40),
            Some(160)
        );
    }

    #[test]
    fn this_process_can_have_more() {
        let own = Process::open(std::process::id()).unwrap();
        let available = memory_available(&own).unwrap();
        assert!(available.host > 1 << 20, "{available:?}");
        assert!(host_memory_available().unwrap() > 1 << 20);
        let limited = available.cgroup.is_none_or(|(bytes, _)| bytes > 1 << 20);
        assert!(limited, "this test has memory");
    }
}
