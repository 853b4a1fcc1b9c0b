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

/// What became of the pages given to [`Userfault::copy`]. All of them are present now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Copied {
    /// Bytes that were installed.
    pub installed: u64,
    /// Bytes that somebody else had installed before; their content was left alone.
    pub present: u64,
}

/// Pages could not be installed. `done` bytes of them are present all the same, counted from
/// the start; what follows may be tried again.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CopyError {
    /// The process has ended.
    #[error("installing pages at {at}: the process has exited")]
    ProcessGone {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
    },
    /// The process was changing its layout all the time that is given to it, 0.3 s.
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
    /// The memory there is not, or no longer, registered.
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
    /// No page to put the content into.
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
        "installing pages at {at}: {errno} (EINVAL: address or length is not a multiple of the host \
         page size, or this type of memory does not support it)"
    )]
    Kernel {
        /// Address of the first page that was not installed.
        at: HostAddr,
        /// Bytes present before that address.
        done: u64,
        /// The error from the kernel.
        errno: Errno,
    },
}

impl CopyError {
    fn new(at: HostAddr, done: u64, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::ProcessGone { at, done },
            Errno::AGAIN => Self::LayoutChanging { at, done },
            Errno::NOENT => Self::NotRegistered { at, done },
            // ENOSPC meant a dying process before Linux 4.13 only, long before anything else that
            // is needed here.
            Errno::NOMEM | Errno::NOSPC => Self::OutOfMemory { at, done },
            errno => Self::Kernel { at, done, errno },
        }
    }

    /// How many bytes, from the first on, are present in spite of the error.
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

/// Memory of ours that the kernel reads from.
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
    /// Installs `src` at `dst` (4 KiB host pages), each page atomically, and wakes whoever waits
    /// for them. A page that is there already is left as it is and its waiters are woken:
    /// someone was faster.
    ///
    /// # Errors
    ///
    /// See [`CopyError`]; pages before the failure are installed.
    pub fn copy(&self, dst: HostAddr, src: &[u8]) -> Result<Copied, CopyError> {
        self.copy_unless(dst, src, PAGE_SIZE as u64, &mut |_| true)
    }

    /// As [`Self::copy`], or for host pages of `host_page` bytes as [`Self::copy_host_page`], and
    /// asks `present` about each host page that is there already: whether whoever waits for it may
    /// go on. With `false` they are left waiting. Asked before they are woken.
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

    /// Installs one whole host page, as [`Self::copy`] does: `src` is as long as that page. For
    /// hugetlbfs, where the kernel installs nothing smaller.
    ///
    /// # Errors
    ///
    /// See [`CopyError`].
    pub fn copy_host_page(&self, dst: HostAddr, src: &[u8]) -> Result<Copied, CopyError> {
        self.copy_unless(dst, src, src.len() as u64, &mut |_| true)
    }

    /// As [`Self::copy_unless`] of one host page, out of a buffer that is as long as that page. What
    /// other threads have written to it must be known to be done.
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

    /// Installs pages of zeros, as [`Self::copy`] does. Not on hugetlbfs.
    ///
    /// # Errors
    ///
    /// See [`CopyError`].
    pub fn zero(&self, range: HostRange) -> Result<Copied, CopyError> {
        let page = PAGE_SIZE as u64;
        self.install(range.addr, range.len, page, None, &mut |_| true)
    }

    /// `granule`: how much is skipped when the kernel says that the next page is there already.
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
            // On failure `progress` is a count of bytes if there was any, or a negated errno.
            match u64::try_from(progress) {
                Ok(bytes @ 1..) if result.is_ok() || result == Err(Errno::AGAIN) => {
                    copied.installed += bytes.min(rest.len);
                    attempts = 0;
                    continue;
                }
                _ => {}
            }
            match result {
                // Success without progress does not exist; never loop on it.
                Ok(()) => return Err(CopyError::new(at, done, Errno::IO)),
                Err(Errno::EXIST) => {
                    let page = HostRange::new(at, granule.min(rest.len));
                    match self.is_present(page) {
                        Ok(()) => {
                            // Whoever was faster may have filled the page through another
                            // mapping, and woken nobody.
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

    /// Whether a host page that "exists" is there. With hugetlbfs, `UFFDIO_COPY` says `EEXIST`
    /// where there is no huge page to be had as well (`hugetlb_mfill_atomic_pte` in mm/hugetlb.c:
    /// the page table's entry exists, empty; seen on Linux 6.18 with a pool that is used up and
    /// with a full file system). Believing it would lose the page: it would be filled with zeros
    /// as soon as there is room.
    ///
    /// `UFFDIO_CONTINUE` maps what the file has there: it succeeds, or says `EEXIST` for what is
    /// mapped already, or `EFAULT` for what the file has not (ioctl_userfaultfd(2)).
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
        // `done` is below `src.bytes`; an impossible value leaves nothing to read.
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
        // which `Memory` borrows for the length of the call. It writes only to memory of the process
        // that the descriptor belongs to, and there only pages that nobody has seen yet.
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
