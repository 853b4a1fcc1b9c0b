//! A device that writes to memory by direct I/O. A fixed buffer of an io_uring is pinned when it is
//! registered, and a later read into it accesses no page table (`io_uring_register(2)`,
//! `IORING_REGISTER_BUFFERS`). So the test controls when the page is pinned and when the data
//! lands.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use hikkoshi_pages::PAGE_SIZE;
use io_uring::{IoUring, opcode, types};

use crate::common::memory_file;

/// A device in this process, with one page at a time.
pub(crate) struct PinningDevice {
    ring: IoUring,
    /// Holds the data to be read.
    file: File,
    page: *mut u8,
}

impl PinningDevice {
    pub(crate) fn new() -> Self {
        Self {
            ring: IoUring::new(2).unwrap(),
            file: memory_file(8, false),
            page: std::ptr::null_mut(),
        }
    }

    /// Pins the page at `page`.
    pub(crate) fn pin(&mut self, page: *mut u8) {
        let buffer = libc::iovec {
            iov_base: page.cast(),
            iov_len: PAGE_SIZE,
        };
        // SAFETY: the page stays mapped as long as this process runs.
        unsafe { self.ring.submitter().register_buffers(&[buffer]) }.unwrap();
        self.page = page;
    }

    /// Writes a value to the beginning of the pinned page, and unpins the page.
    pub(crate) fn land(&mut self, value: u64) {
        self.file.write_all_at(&value.to_ne_bytes(), 0).unwrap();
        let read = opcode::ReadFixed::new(types::Fd(self.file.as_raw_fd()), self.page, 8, 0);
        // SAFETY: as above; no other code accesses the page meanwhile.
        unsafe { self.ring.submission().push(&read.build()) }.unwrap();
        self.ring.submit_and_wait(1).unwrap();
        let done = self.ring.completion().next().unwrap();
        assert_eq!(done.result(), 8);
        self.ring.submitter().unregister_buffers().unwrap();
    }
}
