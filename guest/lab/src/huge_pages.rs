//! Huge pages, reserved for as long as a test needs them.

use crate::LabError;
use std::fs::{self, File};
use std::path::Path;

/// The sizes that x86-64 has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HugePageSize {
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl HugePageSize {
    /// In MiB.
    pub fn mib(self) -> u64 {
        match self {
            Self::Mib2 => 2,
            Self::Gib1 => 1024,
        }
    }

    /// As QEMU and a hugetlbfs mount take it.
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

/// Huge pages added to the kernel's pool, taken out again on drop.
#[derive(Debug)]
pub struct HugePages {
    size: HugePageSize,
    pages: u64,
}

impl HugePages {
    /// Adds as many pages of that size as `mib` MiB take.
    ///
    /// # Errors
    /// When the kernel does not have them in one piece each, or this process may not ask (that
    /// needs root).
    pub fn reserve(size: HugePageSize, mib: u64) -> Result<Self, LabError> {
        let _alone = lock()?;
        let before = read(size)?;
        let pages = mib.div_ceil(size.mib());
        write(size, before + pages)?;
        let got = read(size)?.saturating_sub(before);
        if got < pages {
            write(size, before)?;
            return Err(LabError::HugePages {
                mib: size.mib(),
                wanted: pages,
                got,
            });
        }
        Ok(Self { size, pages })
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

/// Two tests that add to the same number take turns.
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
    let pool = size.pool();
    fs::write(pool, pages.to_string()).map_err(LabError::file("writing", pool))
}
