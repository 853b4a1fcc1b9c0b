//! File systems for RAM files, mounted for one test.

use crate::{HugePageSize, Lab, LabError};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    /// Keeps the folder that the mount point is in.
    _lab: Lab,
}

impl Mount {
    /// A tmpfs that holds `mib` MiB and no more.
    ///
    /// # Errors
    /// When it cannot be mounted (that needs root).
    pub fn tmpfs(lab: &Lab, name: &str, mib: u64) -> Result<Self, LabError> {
        Self::new(lab, name, "tmpfs", &format!("size={mib}m"))
    }

    /// A hugetlbfs with pages of that size.
    pub(crate) fn hugetlbfs(lab: &Lab, name: &str, size: HugePageSize) -> Result<Self, LabError> {
        let size = size.option();
        Self::new(lab, name, "hugetlbfs", &format!("pagesize={size}"))
    }

    /// Has the kernel clear `mib` MiB of this file system's memory, once. A machine that is virtual
    /// itself may get its memory only then, a page at a time: 20 s for a gigabyte, where
    /// `UFFDIO_COPY` of a page of that size would otherwise wait for it.
    pub(crate) fn preallocate(&self, mib: u64) -> Result<(), LabError> {
        let path = self.path.join("touched");
        let file = File::create(&path).map_err(LabError::file("creating", &path))?;
        let none = rustix::fs::FallocateFlags::empty();
        let touched = rustix::fs::fallocate(&file, none, 0, mib << 20)
            .map_err(|error| LabError::file("filling", &path)(error.into()));
        // Whether or not that went well.
        fs::remove_file(&path).map_err(LabError::file("removing", &path))?;
        touched
    }

    fn new(lab: &Lab, name: &str, kind: &str, options: &str) -> Result<Self, LabError> {
        let path = lab.folder().join(name);
        fs::create_dir(&path).map_err(LabError::file("creating the mount point", &path))?;
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

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Detached, so that a process that still holds a file does not keep the folder.
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.path);
    }
}
