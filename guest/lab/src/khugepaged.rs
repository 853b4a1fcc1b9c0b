//! Transparent huge pages of the host: whether there are any, and the kernel's thread that
//! rebuilds them.

use crate::LabError;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// The pauses of `khugepaged`: between scans, and after an allocation that failed.
const PAUSES: [&str; 2] = ["scan_sleep_millisecs", "alloc_sleep_millisecs"];
/// Short, and long enough that the thread does not keep a processor busy.
const SHORT_MS: &str = "10";

/// Whether QEMU, which asks for them, gets transparent huge pages on this host.
pub fn has_transparent_huge_pages() -> bool {
    let enabled = fs::read_to_string(Path::new(THP).join("enabled"));
    enabled.is_ok_and(|modes| !modes.contains("[never]"))
}

/// Makes `khugepaged` look for small pages all the time instead of every ten seconds. Its settings
/// are restored on drop.
#[derive(Debug)]
pub struct FastKhugepaged {
    before: Vec<(PathBuf, String)>,
    _alone: File,
}

impl FastKhugepaged {
    /// Shortens its pauses. Waits until no other test has shortened them.
    ///
    /// # Errors
    /// When the kernel has no such thread, or this process has no privilege (that needs root).
    pub fn start() -> Result<Self, LabError> {
        let lock = std::env::temp_dir().join("hikkoshi-khugepaged.lock");
        let alone = File::create(&lock).map_err(LabError::file("creating", &lock))?;
        rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|error| LabError::file("locking", &lock)(error.into()))?;
        let mut fast = Self {
            before: Vec::new(),
            _alone: alone,
        };
        for name in PAUSES {
            let path = Path::new(THP).join("khugepaged").join(name);
            let value = fs::read_to_string(&path).map_err(LabError::file("reading", &path))?;
            fs::write(&path, SHORT_MS).map_err(LabError::file("writing", &path))?;
            fast.before.push((path, value));
        }
        Ok(fast)
    }
}

impl Drop for FastKhugepaged {
    fn drop(&mut self) {
        for (path, value) in &self.before {
            let _ = fs::write(path, value.trim());
        }
    }
}
