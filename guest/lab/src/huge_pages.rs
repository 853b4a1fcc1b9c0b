//! Huge pages reserved during a test.

use crate::LabError;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How often contiguous memory is looked for.
const ATTEMPTS: u32 = 5;

/// The sizes of huge pages on x86-64.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HugePageSize {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePageSize {
    /// The size in MiB.
    pub fn mib(self) -> u64 {
        match self {
            Self::Mib2 => 2,
            Self::Gib1 => 1024,
        }
    }

    /// The size in the syntax of hugetlbfs mount options.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Mib2 => "2M",
            Self::Gib1 => "1G",
        }
    }

    fn pool(self) -> &'static Path {
        Path::new(match self {
            Self::Mib2 => "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            Self::Gib1 => "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
        })
    }
}

impl fmt::Display for HugePageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mib2 => "2 MiB",
            Self::Gib1 => "1 GiB",
        })
    }
}

/// Huge pages added to the kernel's pool; removed on drop.
#[derive(Debug)]
pub struct HugePages {
    size: HugePageSize,
    pages: u64,
}

impl HugePages {
    /// Adds as many pages of that size as `mib` MiB need.
    ///
    /// # Errors
    /// When the kernel does not have enough contiguous memory, or this process has no privilege
    /// (that needs root).
    pub fn reserve(size: HugePageSize, mib: u64) -> Result<Self, LabError> {
        let _alone = lock()?;
        let before = read(size)?;
        let pages = mib.div_ceil(size.mib());
        let mut got = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // Pages that a device or the kernel is using for a moment cannot be moved.
                thread::sleep(Duration::from_secs(1));
                // So is a cache that has been read all over the memory.
                write_number(Path::new("/proc/sys/vm/drop_caches"), 3)?;
                write_number(Path::new("/proc/sys/vm/compact_memory"), 1)?;
            }
            write(size, before + pages)?;
            got = read(size)?.saturating_sub(before);
            if got == pages {
                return Ok(Self { size, pages });
            }
        }
        write(size, before)?;
        Err(LabError::HugePages {
            mib: size.mib(),
            wanted: pages,
            got,
        })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _alone = lock();
        if let Ok(now) = read(self.size) {
            let _ = write(self.size, now.saturating_sub(self.pages));
        }
    }
}

/// Serialises tests that change the same number.
fn lock() -> Result<File, LabError> {
    let path = std::env::temp_dir().join("hikkoshi-huge-pages.lock");
    let file = File::create(&path).map_err(LabError::file("creating", &path))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| LabError::file("locking", &path)(error.into()))?;
    Ok(file)
}

fn read(size: HugePageSize) -> Result<u64, LabError> {
    let pool = size.pool();
    let text = fs::read_to_string(pool).map_err(LabError::file("reading", pool))?;
    text.trim()
        .parse()
        .map_err(|_| LabError::file("reading a number from", pool)(std::io::Error::other(text)))
}

fn write(size: HugePageSize, pages: u64) -> Result<(), LabError> {
    write_number(size.pool(), pages)
}

fn write_number(path: &Path, number: u64) -> Result<(), LabError> {
    fs::write(path, number.to_string()).map_err(LabError::file("writing", path))
}
