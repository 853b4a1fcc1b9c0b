//! File systems for RAM files and disks, mounted during a test.

use crate::artifacts::bindfs;
use crate::{HugePageSize, Lab, LabError, spawn};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    /// Keeps the folder of the mount point.
    _lab: Lab,
}

impl Mount {
    /// Mounts a tmpfs of `mib` MiB.
    ///
    /// # Errors
    /// When it cannot be mounted (that needs root).
    pub fn tmpfs(lab: &Lab, name: &str, mib: u64) -> Result<Self, LabError> {
        Self::new(lab, name, "tmpfs", &format!("size={mib}m"))
    }

    /// Mounts a ramfs: a file system that is neither tmpfs nor on a disk.
    ///
    /// # Errors
    /// When it cannot be mounted (that needs root).
    pub fn ramfs(lab: &Lab, name: &str) -> Result<Self, LabError> {
        Self::new(lab, name, "ramfs", "")
    }

    /// Mounts a view of `folder` by FUSE, with these options of bindfs: a file system with device
    /// and inode numbers of its own, as each host has that shares a folder.
    ///
    /// # Errors
    /// When bindfs is missing, or it cannot be mounted (that needs root).
    pub fn view(lab: &Lab, name: &str, folder: &Path, options: &[&str]) -> Result<Self, LabError> {
        let path = Self::mount_point(lab, name)?;
        // It returns when the file system is mounted, and its server ends when that is unmounted.
        spawn::run(Command::new(bindfs()?).args(options).arg(folder).arg(&path))?;
        Ok(Self {
            path,
            _lab: lab.clone(),
        })
    }

    /// Mounts a hugetlbfs with pages of that size.
    pub(crate) fn hugetlbfs(lab: &Lab, name: &str, size: HugePageSize) -> Result<Self, LabError> {
        let size = size.option();
        Self::new(lab, name, "hugetlbfs", &format!("pagesize={size}"))
    }

    /// Makes the kernel clear `mib` MiB of this file system's memory once. If this host is a
    /// virtual machine itself, it may get its memory only then, page by page: 20 s for a gigabyte.
    /// Without this, `UFFDIO_COPY` of a page of that size would wait for it.
    pub(crate) fn preallocate(&self, mib: u64) -> Result<(), LabError> {
        let path = self.path.join("touched");
        let file = File::create(&path).map_err(LabError::file("creating", &path))?;
        let none = rustix::fs::FallocateFlags::empty();
        let touched = rustix::fs::fallocate(&file, none, 0, mib << 20)
            .map_err(|error| LabError::file("filling", &path)(error.into()));
        // Remove the file also after an error.
        fs::remove_file(&path).map_err(LabError::file("removing", &path))?;
        touched
    }

    fn new(lab: &Lab, name: &str, kind: &str, options: &str) -> Result<Self, LabError> {
        let path = Self::mount_point(lab, name)?;
        let options = std::ffi::CString::new(options).unwrap_or_default();
        rustix::mount::mount(
            "hikkoshi-lab",
            &path,
            kind,
            rustix::mount::MountFlags::empty(),
            options.as_c_str(),
        )
        .map_err(|error| LabError::file("mounting a file system at", &path)(error.into()))?;
        Ok(Self {
            path,
            _lab: lab.clone(),
        })
    }

    fn mount_point(lab: &Lab, name: &str) -> Result<PathBuf, LabError> {
        let path = lab.folder().join(name);
        fs::create_dir(&path).map_err(LabError::file("creating the mount point", &path))?;
        Ok(path)
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Detached, so that a process that still has a file open does not keep the folder.
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}
