//! Huge pages, reserved for as long as a test needs them.

use crate::LabError;
use std::fs::{self, File};
use std::path::Path;

/// Bytes in a huge page.
const HUGE_PAGE_MIB: u64 = 2;
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Huge pages of 2 MiB added to the kernel's pool, taken out again on drop.
#[derive(Debug)]
pub struct HugePages {
    pages: u64,
}

impl HugePages {
    /// Adds as many pages as `mib` MiB take.
    ///
    /// # Errors
    /// When the kernel does not have them in one piece each, or this process may not ask (that
    /// needs root).
    pub fn reserve(mib: u64) -> Result<Self, LabError> {
        let _alone = lock()?;
        let before = read()?;
        let pages = mib.div_ceil(HUGE_PAGE_MIB);
        write(before + pages)?;
        let got = read()?.saturating_sub(before);
        if got < pages {
            write(before)?;
            return Err(LabError::HugePages { wanted: pages, got });
        }
        Ok(Self { pages })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _alone = lock();
        if let Ok(now) = read() {
            let _ = write(now.saturating_sub(self.pages));
        }
    }
}

/// Two tests that add to the same number take turns.
fn lock() -> Result<File, LabError> {
    let path = std::env::temp_dir().join("hikkoshi-huge-pages.lock");
    let file = File::create(&path).map_err(LabError::file("creating", &path))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| LabError::file("locking", &path)(error.into()))?;
    Ok(file)
}

fn read() -> Result<u64, LabError> {
    let text = fs::read_to_string(POOL).map_err(LabError::file("reading", Path::new(POOL)))?;
    text.trim().parse().map_err(|_| {
        LabError::file("reading a number from", Path::new(POOL))(std::io::Error::other(text))
    })
}

fn write(pages: u64) -> Result<(), LabError> {
    fs::write(POOL, pages.to_string()).map_err(LabError::file("writing", Path::new(POOL)))
}
