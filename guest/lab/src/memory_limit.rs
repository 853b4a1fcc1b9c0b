//! Limited and swapped guest memory: a limit on the memory of a machine by the kernel's memory
//! controller, and compressed swap space in memory (zram).

use crate::{Lab, LabError, spawn};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for a cgroup to become empty after its last process has ended.
const EMPTY: Duration = Duration::from_secs(5);
const ZRAM: &str = "/sys/class/zram-control";

/// A limit on the memory of a machine; what is over is swapped, if there is swap space. Cheap to
/// clone; removed with the last clone.
#[derive(Clone, Debug)]
pub struct MemoryLimit(Arc<Group>);

#[derive(Debug)]
struct Group {
    folder: PathBuf,
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
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (root, controller) = memory_controller()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("{}-{number}", lab.name()));
        fs::create_dir(&folder).map_err(LabError::file("creating the cgroup", &folder))?;
        let group = Self(Arc::new(Group { folder, controller }));
        group.write(controller.limit, &(mib << 20).to_string())?;
        Ok(group)
    }

    /// A limit above which nothing is swapped: the kernel kills the machine.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn without_swap(lab: &Lab, mib: u64) -> Result<Self, LabError> {
        let group = Self::new(lab, mib)?;
        let (name, value) = group.0.controller.no_swap;
        group.write(name, value)?;
        Ok(group)
    }

    /// The cgroup's folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Memory that is charged to the limit, MiB.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn used_mib(&self) -> Result<u64, LabError> {
        let path = self.0.folder.join(self.0.controller.used);
        let text = fs::read_to_string(&path).map_err(LabError::file("reading", &path))?;
        // The kernel writes a number.
        Ok(text.trim().parse::<u64>().unwrap_or(0) >> 20)
    }

    /// The file to which a process writes its number to apply the limit to itself.
    pub fn processes(&self) -> PathBuf {
        self.0.folder.join("cgroup.procs")
    }

    /// Applies the limit to a process with all of its threads.
    pub(crate) fn add_process(&self, pid: u32) -> Result<(), LabError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.0.folder.join(name);
        fs::write(&path, text).map_err(LabError::file("writing", path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTY;
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
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

/// Swap space in compressed memory, removed on drop.
#[derive(Debug)]
pub struct ZramSwap {
    number: String,
    device: PathBuf,
}

impl ZramSwap {
    /// Creates `mib` MiB of swap space.
    ///
    /// # Errors
    /// [`LabError::NoSwap`] when the kernel has no zram; otherwise when it refuses.
    pub fn new(mib: u64) -> Result<Self, LabError> {
        let add = Path::new(ZRAM).join("hot_add");
        let number = fs::read_to_string(&add).map_err(|error| LabError::NoSwap {
            reason: format!("{} cannot be read: {error}", add.display()),
        })?;
        let number = number.trim().to_owned();
        let swap = Self {
            device: PathBuf::from(format!("/dev/zram{number}")),
            number,
        };
        let size = format!("/sys/block/zram{}/disksize", swap.number);
        fs::write(&size, format!("{mib}M")).map_err(LabError::file("writing", &size))?;
        spawn::run(Command::new("mkswap").arg(&swap.device))?;
        spawn::run(Command::new("swapon").arg(&swap.device))?;
        Ok(swap)
    }
}

impl Drop for ZramSwap {
    fn drop(&mut self) {
        let _ = spawn::run(Command::new("swapoff").arg(&self.device));
        let _ = fs::write(Path::new(ZRAM).join("hot_remove"), &self.number);
    }
}
