//! Rebuilding huge pages: `process_madvise(MADV_COLLAPSE)`.
//!
//! Tried on Linux 6.18: tmpfs needs no `huge=` mount option for it, nor more in
//! `shmem_enabled` than that it is not `deny`. A foreign process needs CAP_SYS_NICE beside the right to look into it (the
//! same user, or CAP_SYS_PTRACE); CAP_SYS_ADMIN alone is refused.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use thiserror::Error;

use crate::address::HostRange;
use crate::errno::last_errno;
use crate::process::Process;

/// `MADV_COLLAPSE` of `asm-generic/mman-common.h`, Linux 6.1.
const MADV_COLLAPSE: i32 = 25;

/// Bytes in the huge page that is rebuilt.
pub const COLLAPSE_BYTES: u64 = 2 << 20;

/// A huge page was not rebuilt; the memory is what it was.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CollapseError {
    /// Not allowed.
    #[error("not permitted: needs CAP_SYS_NICE, and the same user ID or CAP_SYS_PTRACE")]
    NotPermitted,
    /// The kernel cannot do it there.
    #[error(
        "not supported: the kernel is older than 6.1 or has no transparent huge pages, or \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled is set to deny"
    )]
    Impossible,
    /// The memory's address and its place in the file differ by something else than whole huge
    /// pages. The kernel says no more of it than that it is impossible: callers that can tell,
    /// tell.
    #[error(
        "the memory is not mapped at a multiple of 2 MiB: start the destination's QEMU with \
         align=2M in its -object memory-backend-file"
    )]
    Misaligned,
    /// Pages were in use by something that pins or moves them; another try may succeed.
    #[error("some pages were in use")]
    Busy,
    /// The huge page may not be charged to whom it would belong.
    #[error("the memory cgroup limit does not allow another huge page; raise memory.max")]
    OverLimit,
    /// No free huge page to put them into.
    #[error("no free huge page: memory is low or fragmented")]
    NoMemory,
    /// The process has ended, or its memory is no longer there.
    #[error("the process has exited or unmapped the memory")]
    Gone,
    /// Any other error.
    #[error("the kernel returned an error: {0}")]
    Kernel(Errno),
}

impl From<Errno> for CollapseError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted,
            Errno::INVAL | Errno::NOSYS => Self::Impossible,
            Errno::AGAIN => Self::Busy,
            // madvise(2): "could not charge hugepage to cgroup".
            Errno::BUSY => Self::OverLimit,
            // ENOMEM also means that something is not mapped, which the caller's layout excludes.
            Errno::NOMEM => Self::NoMemory,
            Errno::SRCH | Errno::BADF => Self::Gone,
            errno => Self::Kernel(errno),
        }
    }
}

impl Process {
    /// Makes one huge page out of the small ones of `range`, which is [`COLLAPSE_BYTES`] long and
    /// aligned to that, and maps it; holes in it are filled with zeros. Takes as long as copying
    /// it (0.2 to 1 ms); the process waits only if it touches the range meanwhile. A range that is
    /// a huge page already is mapped as one.
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
        // SAFETY: the call reads one iovec, which lives long enough. What that names is memory of
        // the process, which keeps its content.
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
            // A part only: it was longer than one huge page, or the rest is not mapped.
            Ok(_) => Err(CollapseError::Impossible),
            Err(_) => Err(last_errno().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_busy() {
        assert_eq!(CollapseError::from(Errno::AGAIN), CollapseError::Busy);
        let limit = CollapseError::from(Errno::BUSY);
        assert_eq!(limit, CollapseError::OverLimit);
        assert!(limit.to_string().contains("cgroup"), "{limit}");
    }
}
