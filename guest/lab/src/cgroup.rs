//! A cgroup (v1 or v2) for processes of a lab.

use crate::{Lab, LabError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for a cgroup to become empty after its last process has ended.
const EMPTY: Duration = Duration::from_secs(5);

/// A cgroup below the mount point of a controller; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates it.
    pub(crate) fn new(lab: &Lab, controller: &Path) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = controller.join(format!("{}-{number}", lab.name()));
        fs::create_dir(&folder).map_err(LabError::file("creating the cgroup", &folder))?;
        Ok(Self(folder))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Moves a process with all of its threads into it.
    pub(crate) fn add_process(&self, pid: u32) -> Result<(), LabError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Writes to one of its files.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(LabError::file("writing", path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTY;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
