//! Rebuilds huge pages with `process_madvise(MADV_COLLAPSE)`.
//!
//! Tested on Linux 6.18: tmpfs needs no `huge=` mount option for it, and `shmem_enabled` may have
//! any value except `deny`. Another process's memory requires CAP_SYS_NICE, and the right to
//! inspect the process (the same user, or CAP_SYS_PTRACE); CAP_SYS_ADMIN alone is not sufficient.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use thiserror::Error;

use crate::address::HostRange;
use crate::errno::last_errno;
use crate::process::Process;

/// `MADV_COLLAPSE` of `asm-generic/mman-common.h`, Linux 6.1.
const MADV_COLLAPSE: i32 = 25;

/// Size in bytes of a rebuilt huge page.
pub const COLLAPSE_BYTES: u64 = 2 << 20;

/// Rebuilding a huge page failed; the memory is unchanged.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CollapseError {
    /// The privilege is missing.
    #[error("not permitted: needs CAP_SYS_NICE, and the same user ID or CAP_SYS_PTRACE")]
    NotPermitted,
    /// The kernel does not support it for this memory.
    #[error(
        "not supported: the kernel is older than 6.1 or has no transparent huge pages, or \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled is set to deny"
    )]
    Impossible,
    /// The address of the memory and its offset in the file are not congruent modulo the huge page
    /// size. The kernel reports this as `EINVAL`, like unsupported; callers that can distinguish
    /// the two use this variant.
    #[error(
        "the memory is not mapped at a multiple of 2 MiB: start the destination's QEMU with \
         align=2M in its -object memory-backend-file"
    )]
    Misaligned,
    /// Some pages were pinned or being moved; a retry may succeed.
    #[error("some pages were in use")]
    Busy,
    /// The memory cgroup limit does not allow the huge page.
    #[error("the memory cgroup limit does not allow another huge page; raise memory.max")]
    OverLimit,
    /// No free huge page.
    #[error("no free huge page: memory is low or fragmented")]
    NoMemory,
    /// The process has exited, or the memory is no longer mapped.
    #[error("the process has exited or unmapped the memory")]
    Gone,
    /// Any other error.
    #[error("the kernel returned an error")]
    Kernel(#[source] Errno),
}

impl From<Errno> for CollapseError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted,
            Errno::INVAL | Errno::NOSYS => Self::Impossible,
            Errno::AGAIN => Self::Busy,
            // madvise(2): "could not charge hugepage to cgroup".
            Errno::BUSY => Self::OverLimit,
            // ENOMEM also means that a part is not mapped, which the caller's layout excludes.
            Errno::NOMEM => Self::NoMemory,
            Errno::SRCH | Errno::BADF => Self::Gone,
            errno => Self::Kernel(errno),
        }
    }
}

impl Process {
    /// Replaces the small pages of `range` by one huge page and maps it; holes are filled with
    /// zeros. `range` must be [`COLLAPSE_BYTES`] long and aligned. Takes as long as copying it (0.2
    /// to 1 ms); the process blocks only if it accesses the range meanwhile. If the range is
    /// already a huge page, it is mapped as one.
    ///
    /// # Errors
    ///
    /// See [`CollapseError`].
    pub fn collapse(&self, range: HostRange) -> Result<(), CollapseError> {
        let bytes = usize::try_from(range.len).map_err(|_| CollapseError::Impossible)?;
        let vector = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(
                usize::try_from(range.addr.0).map_err(|_| CollapseError::Impossible)?,
            ),
            iov_len: bytes,
        };
        // SAFETY: the call reads one iovec, which outlives it. The iovec refers to memory of the
        // other process, whose content does not change.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                self.as_fd().as_raw_fd(),
                &raw const vector,
                1usize,
                MADV_COLLAPSE,
                0u32,
            )
        };
        match u64::try_from(advised) {
            Ok(done) if done == range.len => Ok(()),
            // Only a part: the range was longer than one huge page, or the rest is not mapped.
            Ok(_) => Err(CollapseError::Impossible),
            Err(_) => Err(last_errno().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_eagain_is_busy() {
        assert_eq!(CollapseError::from(Errno::AGAIN), CollapseError::Busy);
        let limit = CollapseError::from(Errno::BUSY);
        assert_eq!(limit, CollapseError::OverLimit);
        assert!(limit.to_string().contains("cgroup"), "{limit}");
    }
}
