//! A limit on the memory of a machine, by the kernel's memory controller.

use crate::cgroup::Cgroup;
use crate::{Lab, LabError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A limit on the memory of a machine; what is over is swapped, if there is swap space. Cheap to
/// clone; removed with the last clone.
#[derive(Clone, Debug)]
pub struct MemoryLimit(Arc<Group>);

#[derive(Debug)]
struct Group {
    cgroup: Cgroup,
    controller: &'static Controller,
}

/// Files of the memory controller.
#[derive(Debug)]
struct Controller {
    limit: &'static str,
    used: &'static str,
    /// What keeps a cgroup from swapping, and the value for it.
    no_swap: (&'static str, &'static str),
}

static V1: Controller = Controller {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    no_swap: ("memory.swappiness", "0"),
};

static V2: Controller = Controller {
    limit: "memory.max",
    used: "memory.current",
    no_swap: ("memory.swap.max", "0"),
};

impl MemoryLimit {
    /// Creates a limit of `mib` MiB.
    ///
    /// # Errors
    /// [`LabError::NoSwap`] when this host has no memory controller; otherwise when the kernel
    /// refuses.
    pub fn new(lab: &Lab, mib: u64) -> Result<Self, LabError> {
        let (root, controller) = memory_controller()?;
        let cgroup = Cgroup::new(lab, &root)?;
        let group = Self(Arc::new(Group { cgroup, controller }));
        group
            .0
            .cgroup
            .write(controller.limit, &(mib << 20).to_string())?;
        Ok(group)
    }

    /// A limit above which nothing is swapped: the kernel kills the machine.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn without_swap(lab: &Lab, mib: u64) -> Result<Self, LabError> {
        let group = Self::new(lab, mib)?;
        let (name, value) = group.0.controller.no_swap;
        group.0.cgroup.write(name, value)?;
        Ok(group)
    }

    /// The cgroup's folder.
    pub fn folder(&self) -> &Path {
        self.0.cgroup.folder()
    }

    /// Memory that is charged to the limit, MiB.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn used_mib(&self) -> Result<u64, LabError> {
        let path = self.folder().join(self.0.controller.used);
        let text = fs::read_to_string(&path).map_err(LabError::file("reading", &path))?;
        // The kernel writes a number.
        Ok(text.trim().parse::<u64>().unwrap_or(0) >> 20)
    }

    /// The file to which a process writes its number to apply the limit to itself.
    pub fn processes(&self) -> PathBuf {
        self.folder().join("cgroup.procs")
    }

    /// Applies the limit to a process with all of its threads.
    pub(crate) fn add_process(&self, pid: u32) -> Result<(), LabError> {
        self.0.cgroup.add_process(pid)
    }
}

/// The mount point of the memory controller of the first cgroups that have it.
pub(crate) fn memory_controller_folder() -> Result<PathBuf, LabError> {
    Ok(memory_controller()?.0)
}

/// The memory controller's mount point, and its files: cgroup v1 or v2.
fn memory_controller() -> Result<(PathBuf, &'static Controller), LabError> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        let path = PathBuf::from(path);
        let v2 = || fs::read_to_string(path.join("cgroup.subtree_control"));
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => Some((path, &V1)),
            "cgroup2" if v2().is_ok_and(|on| on.split(' ').any(|on| on.trim() == "memory")) => {
                Some((path, &V2))
            }
            _ => None,
        }
    });
    found.ok_or_else(|| LabError::NoSwap {
        reason: "no cgroup hierarchy with the memory controller is mounted".to_owned(),
    })
}
