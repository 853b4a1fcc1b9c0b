//! Installing pages: the latency-critical path. Nothing in this file allocates.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use hikkoshi_pages::PAGE_SIZE;
use rustix::io::Errno;
use thiserror::Error;

use crate::abi;
use crate::page_buffer::PageBuffer;
use crate::userfault::{Userfault, pause_before_retry};
use hikkoshi_linux::{HostAddr, HostRange, last_errno};

/// The result of installing pages with [`Userfault::copy`]. All of them are present now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Copied {
    /// Bytes that were installed.
    pub installed: u64,
    /// Bytes that were present before the call; their content was not changed.
    pub present: u64,
}

/// Installing pages failed. The first `done` bytes are present nevertheless; the rest can be
/// retried.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CopyError {
    /// The process has exited.
    #[error("installing pages at {at}: the process has exited")]
    ProcessGone {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
    },
    /// The process kept changing its memory layout for 0.3 s, the retry limit.
    #[error(
        "installing pages at {at}: the process keeps changing its memory layout; read the pending \
         events of the userfaultfd, then retry"
    )]
    LayoutChanging {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
    },
    /// The memory is not registered, or not any more.
    #[error(
        "installing pages at {at}: this memory is not registered with the userfaultfd; the process \
         may have unmapped or replaced it"
    )]
    NotRegistered {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
    },
    /// The kernel could not allocate a page.
    #[error(
        "installing pages at {at}: the host is out of memory for it (tmpfs or hugetlb pool full, \
         or memory cgroup limit reached); free memory, then retry"
    )]
    OutOfMemory {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
    },
    /// Any other error.
    #[error(
        "installing pages at {at} (EINVAL: address or length is not a multiple of the \
         host page size, or this type of memory does not support it)"
    )]
    Kernel {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
        /// The error from the kernel.
        #[source]
        errno: Errno,
    },
}

impl CopyError {
    fn new(at: HostAddr, done: u64, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::ProcessGone { at, done },
            Errno::AGAIN => Self::LayoutChanging { at, done },
            Errno::NOENT => Self::NotRegistered { at, done },
            // Before Linux 4.13 ENOSPC meant that the process is exiting. Other features used here
            // need a newer kernel.
            Errno::NOMEM | Errno::NOSPC => Self::OutOfMemory { at, done },
            errno => Self::Kernel { at, done, errno },
        }
    }

    /// Number of bytes, from the start, that are present despite the error.
    #[must_use]
    pub fn done(&self) -> u64 {
        match *self {
            Self::ProcessGone { done, .. }
            | Self::LayoutChanging { done, .. }
            | Self::NotRegistered { done, .. }
            | Self::OutOfMemory { done, .. }
            | Self::Kernel { done, .. } => done,
        }
    }
}

/// Memory of this process that the kernel reads from.
#[derive(Clone, Copy)]
struct Memory<'a> {
    address: u64,
    bytes: u64,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Memory<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr().expose_provenance() as u64,
            bytes: bytes.len() as u64,
            borrowed: PhantomData,
        }
    }
}

impl<'a> From<&'a PageBuffer> for Memory<'a> {
    fn from(buffer: &'a PageBuffer) -> Self {
        Self {
            address: buffer.address(),
            bytes: buffer.len() as u64,
            borrowed: PhantomData,
        }
    }
}

impl Userfault {
    /// Installs `src` at `dst` (4 KiB host pages), each page atomically, and wakes the threads that
    /// wait for them. A page that is already present is not changed, and its waiters are woken:
    /// another thread has installed it first.
    ///
    /// # Errors
    ///
    /// See [`CopyError`]; pages before the failure are installed.
    pub fn copy(&self, dst: HostAddr, src: &[u8]) -> Result<Copied, CopyError> {
        self.copy_unless(dst, src, PAGE_SIZE as u64, &mut |_| true)
    }

    /// Like [`Self::copy`] for host pages of `host_page` bytes: on hugetlbfs, the kernel installs
    /// only whole huge pages. For each host page that is already present, calls `present` before
    /// its waiters are woken. If `present` returns `false`, they are not woken.
    ///
    /// # Errors
    ///
    /// See [`CopyError`]; pages before the failure are installed.
    pub fn copy_unless(
        &self,
        dst: HostAddr,
        src: &[u8],
        host_page: u64,
        present: &mut dyn FnMut(HostRange) -> bool,
    ) -> Result<Copied, CopyError> {
        let len = src.len() as u64;
        self.install(dst, len, host_page, Some(src.into()), present)
    }

    /// Like [`Self::copy_unless`] for one host page, from a buffer of the length of that page. The
    /// caller must ensure that writes of other threads to the buffer have completed.
    ///
    /// # Errors
    ///
    /// See [`CopyError`].
    pub fn copy_buffer_unless(
        &self,
        dst: HostAddr,
        src: &PageBuffer,
        present: &mut dyn FnMut(HostRange) -> bool,
    ) -> Result<Copied, CopyError> {
        let len = src.len() as u64;
        self.install(dst, len, len, Some(src.into()), present)
    }

    /// Installs zero pages like [`Self::copy`]. Not supported on hugetlbfs.
    ///
    /// # Errors
    ///
    /// See [`CopyError`].
    pub fn zero(&self, range: HostRange) -> Result<Copied, CopyError> {
        let page = PAGE_SIZE as u64;
        self.install(range.addr, range.len, page, None, &mut |_| true)
    }

    /// `granule`: the number of bytes to skip when the kernel reports that the next page is
    /// present.
    fn install(
        &self,
        dst: HostAddr,
        len: u64,
        granule: u64,
        src: Option<Memory<'_>>,
        present: &mut dyn FnMut(HostRange) -> bool,
    ) -> Result<Copied, CopyError> {
        let mut copied = Copied::default();
        let mut attempts = 0;
        loop {
            let done = copied.installed + copied.present;
            if done >= len {
                return Ok(copied);
            }
            let Some(at) = dst.checked_add(done) else {
                return Err(CopyError::new(dst, done, Errno::INVAL));
            };
            let rest = HostRange::new(at, len - done);
            let (result, progress) = match src {
                Some(src) => self.copy_once(rest, src, done),
                None => self.zero_once(rest),
            };
            // On failure `progress` is the number of bytes installed, if any, or a negated errno.
            match u64::try_from(progress) {
                Ok(bytes @ 1..) if result.is_ok() || result == Err(Errno::AGAIN) => {
                    copied.installed += bytes.min(rest.len);
                    attempts = 0;
                    continue;
                }
                _ => {}
            }
            match result {
                // The kernel never reports success without progress; do not loop on it.
                Ok(()) => return Err(CopyError::new(at, done, Errno::IO)),
                Err(Errno::EXIST) => {
                    let page = HostRange::new(at, granule.min(rest.len));
                    match self.is_present(page) {
                        Ok(()) => {
                            // The page may have been filled through another mapping, which does not
                            // wake waiters.
                            if present(page) {
                                let _ = self.wake(page);
                            }
                            copied.present += page.len;
                            attempts = 0;
                        }
                        Err(Errno::AGAIN) if pause_before_retry(attempts) => attempts += 1,
                        Err(errno) => return Err(CopyError::new(at, done, errno)),
                    }
                }
                Err(Errno::AGAIN) if pause_before_retry(attempts) => attempts += 1,
                Err(errno) => return Err(CopyError::new(at, done, errno)),
            }
        }
    }

    /// Checks that a host page for which `UFFDIO_COPY` returned `EEXIST` is present. With
    /// hugetlbfs, `UFFDIO_COPY` also returns `EEXIST` when no huge page can be allocated
    /// (`hugetlb_mfill_atomic_pte` in mm/hugetlb.c: the page table entry exists, but is empty;
    /// observed on Linux 6.18 with an exhausted pool and with a full file system). Treating that
    /// page as present would lose its content: the kernel would fill it with zeros once memory is
    /// available.
    ///
    /// `UFFDIO_CONTINUE` maps the page that the file has: it succeeds, or returns `EEXIST` if the
    /// page is already mapped, or `EFAULT` if the file does not have the page
    /// (ioctl_userfaultfd(2)).
    fn is_present(&self, page: HostRange) -> Result<(), Errno> {
        if page.len == PAGE_SIZE as u64 {
            return Ok(());
        }
        let mut argument = abi::Continue {
            range: abi::Range::from(page),
            ..Default::default()
        };
        match abi::ioctl(self.as_fd(), &mut argument) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(Errno::FAULT) => Err(Errno::NOMEM),
            Err(errno) => Err(errno),
        }
    }

    fn copy_once(&self, to: HostRange, src: Memory<'_>, done: u64) -> (Result<(), Errno>, i64) {
        // `done` is less than `src.bytes`; an impossible value leaves zero bytes to read.
        let done = done.min(src.bytes);
        let mut argument = abi::Copy {
            dst: to.addr.0,
            src: src.address + done,
            len: src.bytes - done,
            mode: 0,
            copy: 0,
        };
        let pointer: *mut abi::Copy = &mut argument;
        // SAFETY: UFFDIO_COPY takes this structure and reads `len` bytes of our memory at `src`,
        // which `Memory` borrows for the duration of the call. It writes only to memory of the
        // process that the descriptor belongs to, and only to pages that are not present yet.
        let result = unsafe { libc::ioctl(self.as_fd().as_raw_fd(), abi::UFFDIO_COPY, pointer) };
        let result = if result < 0 {
            Err(last_errno())
        } else {
            Ok(())
        };
        (result, argument.copy)
    }

    fn zero_once(&self, to: HostRange) -> (Result<(), Errno>, i64) {
        let mut argument = abi::ZeroPage {
            range: abi::Range::from(to),
            ..Default::default()
        };
        let result = abi::ioctl(self.as_fd(), &mut argument);
        (result, argument.zeropage)
    }
}
