//! Memory of this process with which the kernel is tested.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use hikkoshi_linux::HostAddr;
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Size of the test memory: more than one page table maps, so that a part has no page table.
pub(crate) const TEST_BYTES: u64 = 6 << 20;

/// A shared mapping of this process, with which the kernel is tested.
#[derive(Debug)]
pub(crate) struct TestMemory {
    start: NonNull<u8>,
    _file: OwnedFd,
}

impl TestMemory {
    pub(crate) fn new() -> io::Result<Self> {
        let file = memfd_create("hikkoshi-support", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, TEST_BYTES)?;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file that no other code
        // uses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                hikkoshi_pages::usize_from(TEST_BYTES),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, _file: file })
    }

    pub(crate) fn address(&self) -> HostAddr {
        HostAddr(self.start.addr().get() as u64)
    }

    /// Writes to a page, if the page exists.
    pub(crate) fn write(&self, page: u64) {
        if page < TEST_BYTES / PAGE_BYTES {
            let offset = hikkoshi_pages::usize_from(page) * PAGE_SIZE;
            // SAFETY: inside the mapping, which lives as long as `self` and to which there are no
            // references. Volatile, because the write itself is the purpose.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }
}

impl Drop for TestMemory {
    fn drop(&mut self) {
        // SAFETY: a mapping of this object, to which there are no references any more.
        let _ = unsafe {
            munmap(
                self.start.as_ptr().cast(),
                hikkoshi_pages::usize_from(TEST_BYTES),
            )
        };
    }
}
