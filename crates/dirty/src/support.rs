//! Whether this kernel can track writes: tested with real memory, not derived from its version.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{LayoutError, PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{CreateError, Features, Userfault};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use thiserror::Error;

use crate::log::{DirtyError, DirtyLog};
use crate::pagemap::{PagemapLog, StartError};

/// This kernel cannot track writes from outside. Pre-copy and hybrid migration need that; post-copy
/// does not.
#[derive(Debug, Error)]
pub enum UnsupportedKernel {
    /// There is no userfaultfd with asynchronous write protection.
    #[error("no asynchronous write protection (Linux 6.7 and later have it)")]
    Userfault(#[from] CreateError),
    /// The test on memory of this process failed.
    #[error("write tracking does not work on this kernel (PAGEMAP_SCAN requires Linux 6.7)")]
    Tracking(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The test on memory of this process had a wrong result.
    #[error(
        "this kernel's write tracking is wrong: pages {expected:?} of test memory were written, but \
         {found:?} were reported; a migration would corrupt the guest's memory"
    )]
    Wrong {
        /// The pages that were written.
        expected: Vec<u64>,
        /// The pages that were reported.
        found: Vec<u64>,
    },
    /// There is no memory for the test.
    #[error("allocating memory to test write tracking")]
    Memory(#[from] io::Error),
    /// Huge pages on a kernel that hangs when it scans them.
    #[error(
        "2 MiB hugetlb pages can be tracked only on Linux 6.18 and later, this is {release}: on older \
         kernels the scan of unpopulated huge pages can hang forever; use 4 KiB pages, or migrate \
         the guest by post-copy (--mode postcopy)"
    )]
    HugetlbRelease {
        /// The release of the running kernel.
        release: String,
    },
    /// Huge pages that no kernel can track.
    #[error(
        "hugetlb pages of {bytes} bytes cannot be tracked: the kernel does not write-protect them; \
         use 2 MiB or 4 KiB pages, or migrate the guest by post-copy (--mode postcopy)"
    )]
    HugetlbSize {
        /// The page size.
        bytes: u64,
    },
}

/// Size of the test memory: more than one page table maps, so that a part has no page table.
const BYTES: u64 = 6 << 20;

/// Tests write tracking on some memory of this process: pages written before tracking, pages
/// written again, and pages first accessed while tracking.
///
/// # Errors
///
/// Says what is missing, and which kernel has it.
pub fn support() -> Result<(), UnsupportedKernel> {
    let userfault = Arc::new(Userfault::create_for_self(Features::FOR_DIRTY_LOG)?);
    let memory = Memory::new()?;
    let layout = RamLayout::new(vec![RamBlock {
        id: "test memory".to_owned(),
        bytes: BYTES,
        host_page: PAGE_BYTES,
        guest: Vec::new(),
    }])
    .map_err(|error: LayoutError| UnsupportedKernel::Tracking(error.into()))?;
    // Two pages are populated before, and one of them is written again; the last page has no page
    // table.
    let (kept, rewritten, fresh) = (1, 2, (BYTES - PAGE_BYTES) / PAGE_BYTES);
    memory.write(kept);
    memory.write(rewritten);
    let log = PagemapLog::start(userfault, &layout, &[memory.address()])
        .map_err(|error: StartError| UnsupportedKernel::Tracking(error.into()))?;
    memory.write(rewritten);
    memory.write(fresh);
    let take = || {
        let mut found = Vec::new();
        log.take(layout.all(), &mut |run: PageRange| {
            found.extend(run.iter().map(Page::index));
        })
        .map_err(|error: DirtyError| UnsupportedKernel::Tracking(error.into()))?;
        Ok::<_, UnsupportedKernel>(found)
    };
    for expected in [vec![rewritten, fresh], vec![]] {
        let found = take()?;
        if found != expected {
            return Err(UnsupportedKernel::Wrong { expected, found });
        }
    }
    Ok(())
}

/// Whether writes to memory with pages of `host_page` bytes can be tracked. Always true for 4 KiB
/// pages.
///
/// This function does use the kernel's version: a test could hang the calling thread forever
/// (`PM_SCAN_WP_MATCHING` on hugetlb memory with holes). Linux 6.18 was tested and does not hang.
///
/// # Errors
///
/// Says why not.
pub fn hugetlb_support(host_page: u64) -> Result<(), UnsupportedKernel> {
    const TWO_MIB: u64 = 2 << 20;
    match host_page {
        PAGE_BYTES => Ok(()),
        TWO_MIB => {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
            if is_at_least(&release, (6, 18)) {
                Ok(())
            } else {
                let release = release.trim().to_owned();
                Err(UnsupportedKernel::HugetlbRelease { release })
            }
        }
        bytes => Err(UnsupportedKernel::HugetlbSize { bytes }),
    }
}

fn is_at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= wanted
}

/// A shared mapping of this process.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    _file: OwnedFd,
}

impl Memory {
    fn new() -> io::Result<Self> {
        let file = memfd_create("hikkoshi-support", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BYTES)?;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that no other code
        // uses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                hikkoshi_pages::usize_from(BYTES),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, _file: file })
    }

    fn address(&self) -> HostAddr {
        HostAddr(self.start.addr().get() as u64)
    }

    /// Writes to a page, if the page exists.
    fn write(&self, page: u64) {
        if page < BYTES / PAGE_BYTES {
            let offset = hikkoshi_pages::usize_from(page) * PAGE_SIZE;
            // SAFETY: inside the mapping, which lives as long as `self` and to which there are no
            // references. Volatile, because the write itself is the purpose.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: a mapping of this object, to which there are no references any more.
        let _ = unsafe {
            munmap(
                self.start.as_ptr().cast(),
                hikkoshi_pages::usize_from(BYTES),
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_can_track_writes() {
        support().unwrap();
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        for (release, at_least) in [
            ("6.18.44-fc-v445\n", true),
            ("6.18", true),
            ("6.9.3", false),
            ("6.17.99-1-amd64", false),
            ("7.0-rc1", true),
            ("10.1", true),
            ("", false),
        ] {
            assert_eq!(is_at_least(release, (6, 18)), at_least, "{release}");
        }
    }

    #[test]
    fn support_by_page_size() {
        hugetlb_support(PAGE_BYTES).unwrap();
        let error = hugetlb_support(1 << 30).unwrap_err();
        assert!(error.to_string().contains("post-copy"), "{error}");
    }
}
