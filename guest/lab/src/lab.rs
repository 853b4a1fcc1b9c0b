//! A folder for all files of a test, and the cleanup of files that earlier tests left behind.

use crate::LabError;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

/// The default folder for RAM files: a tmpfs on every Linux.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";
const PREFIX: &str = "hikkoshi-lab-";

/// The place for the machines of a test: a folder for sockets and logs, and unique names.
///
/// Cheap to clone; the folder is removed with the last clone and the last machine in it.
#[derive(Clone, Debug)]
pub struct Lab(Arc<LabFolders>);

#[derive(Debug)]
struct LabFolders {
    /// `hikkoshi-lab-PID-N`.
    name: String,
    folder: PathBuf,
    /// The folder for disk images, if created.
    disks: Mutex<Option<PathBuf>>,
}

impl Lab {
    /// Creates the folder, and removes files of processes that have ended.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn new() -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static CLEANED: Once = Once::new();
        CLEANED.call_once(clean);
        let name = format!(
            "{PREFIX}{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir(&folder).map_err(LabError::file("creating the folder", &folder))?;
        Ok(Self(Arc::new(LabFolders {
            name,
            folder,
            disks: Mutex::new(None),
        })))
    }

    /// The folder, for any files of a test. Its path is short enough for sockets.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// The unique name of the lab: `hikkoshi-lab-PID-N`.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The folder for disk images, on the build folder's file system.
    pub(crate) fn disk_folder(&self) -> Result<PathBuf, LabError> {
        static CLEANED: Once = Once::new();
        let disks = crate::artifacts::disks()?;
        CLEANED.call_once(|| clean_disks(&disks));
        let folder = disks.join(&self.0.name);
        fs::create_dir_all(&folder).map_err(LabError::file("creating the folder", &folder))?;
        let mut known = self.0.disks.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(folder.clone());
        Ok(folder)
    }

    /// The unique path of RAM file `name` in `directory`.
    pub(crate) fn ram_file(&self, directory: &Path, name: &str) -> PathBuf {
        directory.join(format!("{}-{name}", self.0.name))
    }
}

impl Drop for LabFolders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        let disks = self.disks.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(disks) = disks {
            let _ = fs::remove_dir_all(disks);
        }
    }
}

/// Removes disk images and throttling cgroups of processes that have ended.
fn clean_disks(disks: &Path) {
    for folder in left_behind(disks, PREFIX) {
        let _ = fs::remove_dir_all(folder);
    }
    if let Ok(groups) = crate::disk_throttle::controller() {
        for group in left_behind(&groups, PREFIX) {
            let _ = fs::remove_dir(group);
        }
    }
}

/// Removes folders, mounts, RAM files, memory limits and namespaces of processes that have ended: a
/// killed test cannot clean up.
fn clean() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for folder in [std::env::temp_dir(), PathBuf::from(SHARED_MEMORY)] {
        for path in left_behind(&folder, PREFIX) {
            for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
                if Path::new(mount).starts_with(&path) {
                    let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
                }
            }
            let _ = match path.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
        }
    }
    if let Ok(groups) = crate::memory_limit::memory_controller_folder() {
        for group in left_behind(&groups, PREFIX) {
            let _ = fs::remove_dir(group);
        }
    }
    for path in left_behind(
        Path::new(crate::net::NAMESPACES),
        crate::net::NAMESPACE_PREFIX,
    ) {
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            let _ = crate::net::ip(&["netns", "delete", name]);
        }
    }
}

/// Entries `PREFIX PID-…` of a folder whose process has ended.
fn left_behind(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .and_then(|name| name.strip_prefix(prefix))
                .and_then(|rest| rest.split('-').next())
                .and_then(|pid| pid.parse::<u32>().ok())
                .is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
        })
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_have_separate_folders_and_remove_them() {
        let (one, two) = (Lab::new().unwrap(), Lab::new().unwrap());
        assert_ne!(one.folder(), two.folder());
        let folder = one.folder().to_owned();
        let other = one.clone();
        drop(one);
        assert!(folder.exists(), "a clone still uses it");
        drop(other);
        assert!(!folder.exists());
    }

    #[test]
    fn cleanup_removes_only_files_of_ended_processes() {
        let lab = Lab::new().unwrap();
        // Process ids are well below this one (/proc/sys/kernel/pid_max is at most 2^22).
        let dead = lab.folder().join(format!("{PREFIX}4999999-0-ram"));
        let alive = lab
            .folder()
            .join(format!("{PREFIX}{}-0-ram", std::process::id()));
        let other = lab.folder().join("something-4999999-0");
        for path in [&dead, &alive, &other] {
            fs::write(path, "").unwrap();
        }
        assert_eq!(left_behind(lab.folder(), PREFIX), [dead]);
    }
}
