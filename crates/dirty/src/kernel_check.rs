//! Whether this kernel can track writes: tested with real memory, not derived from its version.

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use error_reporter::Report;
use hikkoshi_linux::{HostAddr, HostRange, Pagemap};
use hikkoshi_pages::{LayoutError, PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamBlock, RamLayout};
use hikkoshi_userfault::{Features, RegisterMode, Userfault};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::log::{DirtyError, DirtyLog};
use crate::pagemap::{Clear, PagemapLog, StartError, scan};
use crate::unsupported_kernel::UnsupportedKernel;

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

/// Whether this kernel reports holes as written, also where there is no page table. A hole is left
/// where pages were dropped, and it may be a hole that the guest relies on.
///
/// Tested once, with memory that was never used: whether the kernel frees a page table at that
/// moment does not matter. Shared memory stands for private memory as well. If it cannot be tested,
/// the kernel counts as one that does not.
pub(crate) fn reports_holes() -> bool {
    static REPORTS: OnceLock<bool> = OnceLock::new();
    *REPORTS.get_or_init(|| {
        test_holes().unwrap_or_else(|error| {
            let error = Report::new(&*error);
            tracing::warn!(%error, "cannot test whether the kernel reports holes as written");
            false
        })
    })
}

fn test_holes() -> Result<bool, Box<dyn Error>> {
    let userfault = Userfault::create_for_self(Features::FOR_DIRTY_LOG)?;
    let memory = Memory::new()?;
    let range = HostRange::new(memory.address(), BYTES);
    userfault.register(range, RegisterMode::WRITE_PROTECT)?;
    let mut reported = 0;
    scan(
        &Pagemap::open(None)?,
        range,
        Clear::No,
        |written: HostRange| reported += written.len,
    )?;
    Ok(reported == BYTES)
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
}
