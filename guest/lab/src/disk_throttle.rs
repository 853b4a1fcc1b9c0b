//! Limits the read rate of a disk by the kernel's blkio controller (cgroup v1). It delays a
//! process's reads *after* they were submitted, when the guest's pages are already pinned. QEMU's
//! own limits delay them before that.

use crate::cgroup::Cgroup;
use crate::{Lab, LabError};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A limit on the rate at which processes read from the disk of the lab's images. Cheap to clone;
/// removed with the last clone.
#[derive(Clone, Debug)]
pub struct Throttle(Arc<Group>);

#[derive(Debug)]
struct Group {
    cgroup: Cgroup,
    device: String,
}

impl Throttle {
    /// Creates a limit of this many bytes a second.
    ///
    /// # Errors
    /// [`LabError::NoThrottle`] when this host has no such controller, or the controller does not
    /// support the disk; otherwise when the kernel refuses.
    pub fn new(lab: &Lab, read_bytes_per_second: u64) -> Result<Self, LabError> {
        let device = device_of(&lab.disk_folder()?)?;
        let cgroup = Cgroup::new(lab, &controller()?)?;
        let throttle = Self(Arc::new(Group { cgroup, device }));
        throttle.set(read_bytes_per_second)?;
        Ok(throttle)
    }

    /// Changes the limit; 0: no limit.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set(&self, read_bytes_per_second: u64) -> Result<(), LabError> {
        let line = format!("{} {read_bytes_per_second}", self.0.device);
        self.0.cgroup.write("blkio.throttle.read_bps_device", &line)
    }

    /// Applies the limit to a process with all of its threads.
    pub(crate) fn add_process(&self, pid: u32) -> Result<(), LabError> {
        self.0.cgroup.add_process(pid)
    }
}

/// The controller's mount point.
pub(crate) fn controller() -> Result<PathBuf, LabError> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        let is_it = kind == "cgroup" && options.split(',').any(|option| option == "blkio");
        is_it.then(|| PathBuf::from(path))
    });
    found.ok_or_else(|| LabError::NoThrottle {
        reason: "no cgroup v1 hierarchy with the blkio controller is mounted".to_owned(),
        remedy:
            "boot with `systemd.unified_cgroup_hierarchy=0`, or, if cgroup v2 does not use it, \
                 mount -t cgroup -o blkio none /some/folder"
                .to_owned(),
    })
}

/// The whole disk that contains a folder, as `MAJOR:MINOR`.
fn device_of(folder: &Path) -> Result<String, LabError> {
    let number = fs::metadata(folder)
        .map_err(LabError::file("reading the metadata of", folder))?
        .dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let none = || LabError::NoThrottle {
        reason: format!(
            "{} is not on a block device (its file system is device {major}:{minor})",
            folder.display()
        ),
        remedy: "build in a folder on a disk's file system: not tmpfs, overlay or btrfs".to_owned(),
    };
    let entry = entry.canonicalize().map_err(|_| none())?;
    // The controller supports whole disks only.
    let disk = match entry.join("partition").exists() {
        true => entry.parent().ok_or_else(none)?.to_owned(),
        false => entry,
    };
    let number = fs::read_to_string(disk.join("dev")).map_err(|_| none())?;
    Ok(number.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_cgroup_has_its_limit_and_is_removed() {
        let lab = Lab::new().unwrap();
        let throttle = match Throttle::new(&lab, 1_000_000) {
            Err(LabError::NoThrottle { reason, .. }) if std::env::var_os("CI").is_none() => {
                println!("NOT TESTED: {reason}");
                return;
            }
            other => other.unwrap(),
        };
        let folder = throttle.0.cgroup.folder().to_owned();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert!(read("blkio.throttle.read_bps_device").contains(" 1000000"));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        throttle.add_process(child.id()).unwrap();
        assert_eq!(read("cgroup.procs").trim(), child.id().to_string());
        throttle.set(0).unwrap();
        assert_eq!(read("blkio.throttle.read_bps_device"), "");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(throttle);
        assert!(!folder.exists());
    }
}
