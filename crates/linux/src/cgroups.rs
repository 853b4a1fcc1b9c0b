//! The cgroups of a process: where they are, and the numbers in their files.
//!
//! A controller is in a hierarchy of version 1, or in the one of version 2. There may be both. A
//! limit applies to all cgroups below it, so each one on the way up counts.
//! (`Documentation/admin-guide/cgroup-v1/memory.rst`, `cgroup-v2.rst`; cgroups(7).)

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use crate::process::Process;

/// A cgroup of a process, or one above it.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    /// Whether it is in the hierarchy of version 2.
    pub(crate) unified: bool,
    /// Whether its memory controller counts the pages of hugetlbfs (version 2's mount option
    /// `memory_hugetlb_accounting`).
    pub(crate) counts_huge_pages: bool,
    pub(crate) folder: PathBuf,
}

impl Cgroup {
    /// A file's number. `None`: there is no such file, or it says `max`.
    pub(crate) fn number(&self, file: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join(file)).ok()?;
        text.trim().parse().ok()
    }

    /// The sum of these lines of a file of names and numbers; 0 without the file.
    pub(crate) fn sum(&self, file: &str, names: &[&str]) -> u64 {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let ours = lines.filter(|(name, _)| names.contains(name));
        ours.filter_map(|(_, number)| number.trim().parse::<u64>().ok())
            .fold(0, u64::saturating_add)
    }
}

/// The cgroups of a process that limit what a controller does.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    /// In each hierarchy from its own one upwards. Those of version 2 are included whether the
    /// controller is enabled there or not.
    pub(crate) seen: Vec<Cgroup>,
    /// Whether it is in a hierarchy that is mounted here without its cgroup, as for a process
    /// outside of this container.
    pub(crate) is_any_unseen: bool,
}

/// The cgroups of `process` that limit what `controller` does.
///
/// # Errors
///
/// As reading `/proc/PID/cgroup` and `/proc/self/mountinfo`.
pub(crate) fn cgroups_of(process: &Process, controller: &str) -> io::Result<Cgroups> {
    let mut text = String::new();
    process.open_proc("cgroup")?.read_to_string(&mut text)?;
    let mounts = BufReader::new(File::open("/proc/self/mountinfo")?);
    let hierarchies = mounts.lines().filter_map(|line| {
        let hierarchy = line.map(|line| Hierarchy::of_mount(&line, controller));
        hierarchy.transpose()
    });
    let hierarchies: Vec<_> = hierarchies.collect::<io::Result<_>>()?;
    Ok(Cgroups::of_controller(&hierarchies, &text, controller))
}

impl Cgroups {
    /// Of the process with the lines `text` in `/proc/PID/cgroup`.
    fn of_controller(hierarchies: &[Hierarchy], text: &str, controller: &str) -> Self {
        let mut cgroups = Self::default();
        for hierarchy in hierarchies {
            let Some(path) = hierarchy.path(text, controller) else {
                continue;
            };
            // It may be mounted more than once.
            let same = |other: &&Hierarchy| other.unified == hierarchy.unified;
            let mut mounts = hierarchies.iter().filter(same);
            cgroups.is_any_unseen |= mounts.all(|mount| mount.folder(path).is_none());
            let Some(folder) = hierarchy.folder(path) else {
                continue;
            };
            let levels = folder
                .ancestors()
                .take_while(|level| level.starts_with(&hierarchy.mounted));
            cgroups.seen.extend(levels.map(|level| Cgroup {
                unified: hierarchy.unified,
                counts_huge_pages: hierarchy.counts_huge_pages,
                folder: level.to_owned(),
            }));
        }
        cgroups
    }
}

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    unified: bool,
    counts_huge_pages: bool,
    /// The cgroup that is mounted, as a path in the hierarchy.
    root: PathBuf,
    mounted: PathBuf,
}

impl Hierarchy {
    /// From a line of `mountinfo` (proc_pid_mountinfo(5)): that of version 2, or the one that has
    /// `controller`.
    fn of_mount(line: &str, controller: &str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        let unified = match kind {
            "cgroup2" => true,
            "cgroup" if has(controller) => false,
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3);
        Some(Self {
            unified,
            counts_huge_pages: unified && has("memory_hugetlb_accounting"),
            root: mount.next()?.into(),
            mounted: mount.next()?.into(),
        })
    }

    /// The cgroup of the process with these lines in `/proc/PID/cgroup` (cgroups(7)).
    fn path<'a>(&self, cgroups: &'a str, controller: &str) -> Option<&'a Path> {
        let path = cgroups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers) = (parts.next()?, parts.next()?);
            let is_it = match self.unified {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|name| name == controller),
            };
            parts.next().filter(|_| is_it)
        });
        path.map(Path::new)
    }

    /// The folder of this cgroup. `None`: it is outside of what we see.
    fn folder(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).ok()?;
        let inside = below
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        inside.then(|| self.mounted.join(below))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const V1: &str = "36 30 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2: &str = "40 30 0:33 /part /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn a_process_has_a_folder_in_each_hierarchy() {
        let of_mount = |line: &str| Hierarchy::of_mount(line, "memory");
        let v1 = of_mount(V1).unwrap();
        let v2 = of_mount(V2).unwrap();
        let cpu = V1.replace("rw,memory", "rw,cpu");
        assert_eq!(of_mount(&cpu), None);
        assert_eq!(of_mount("1 2 0:3 / / rw - ext4 /dev/a rw"), None);
        let cgroups = "4:cpuset,memory:/a/b\n3:cpu:/x\n0::/part/c\n";
        let folder = |hierarchy: &Hierarchy, text| {
            let path = hierarchy.path(text, "memory")?;
            hierarchy.folder(path)
        };
        assert_eq!(
            folder(&v1, cgroups),
            Some("/sys/fs/cgroup/memory/a/b".into())
        );
        assert_eq!(folder(&v2, cgroups), Some("/sys/fs/cgroup/c".into()));
        // In another part of the hierarchy.
        assert_eq!(folder(&v2, "0::/other\n"), None);
        assert_eq!(folder(&v1, "4:memory:/../other\n"), None);
        assert_eq!(folder(&v1, "0::/a\n"), None);
        assert!(!v2.counts_huge_pages);
        let counts = V2.replace("nsdelegate", "nsdelegate,memory_hugetlb_accounting");
        assert!(of_mount(&counts).unwrap().counts_huge_pages);
    }

    #[test]
    fn each_cgroup_on_the_way_up_counts_and_one_that_is_not_seen_is_reported() {
        let of_mount = |line: &str| Hierarchy::of_mount(line, "memory").unwrap();
        let hierarchies = [of_mount(V1), of_mount(V2)];
        let folders = |text: &str| {
            let cgroups = Cgroups::of_controller(&hierarchies, text, "memory");
            let folders = cgroups.seen.into_iter().map(|cgroup| cgroup.folder);
            let folders = folders.map(|folder| folder.to_str().unwrap().to_owned());
            (folders.collect::<Vec<_>>(), cgroups.is_any_unseen)
        };
        let v1 = ["memory/limited/inner", "memory/limited", "memory"];
        let v1 = v1.map(|name| format!("/sys/fs/cgroup/{name}"));
        let v2 = ["/sys/fs/cgroup/c", "/sys/fs/cgroup"].map(str::to_owned);
        let inner = "4:memory:/limited/inner\n";
        assert_eq!(folders(inner), (v1.to_vec(), false));
        let both = format!("{inner}0::/part/c\n");
        assert_eq!(folders(&both), ([&v1[..], &v2].concat(), false));
        assert_eq!(folders("0::/other\n"), (Vec::new(), true));
        assert_eq!(folders(&format!("{inner}0::/../c\n")), (v1.to_vec(), true));
        assert_eq!(folders(""), (Vec::new(), false));
        // Another mount shows it.
        let all = [of_mount(V2), of_mount(&V2.replace("/part /sys", "/ /sys"))];
        let cgroups = Cgroups::of_controller(&all, "0::/other\n", "memory");
        assert!(!cgroups.is_any_unseen && cgroups.seen.len() == 2);
    }

    /// A cgroup that has these files.
    pub(crate) fn cgroup(unified: bool, files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroup) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
        }
        let cgroup = Cgroup {
            unified,
            counts_huge_pages: false,
            folder: folder.path().to_owned(),
        };
        (folder, cgroup)
    }
}
