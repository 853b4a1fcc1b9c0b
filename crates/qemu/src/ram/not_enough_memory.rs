//! Why the destination has not enough memory for the guest's.

use std::io;

use hikkoshi_linux::CgroupLimit;
use thiserror::Error;

const MIB: u64 = 1 << 20;

/// There is not enough free space for the guest's memory.
#[derive(Debug, Error)]
pub enum NotEnoughMemory {
    /// The tmpfs is full, or too small.
    #[error(
        "the file system of the guest's memory {ids} has {free} bytes free, but {needed} more are \
         needed: enlarge it (mount -o remount,size=…) or use another file system"
    )]
    FileSystem {
        /// The blocks on it.
        ids: String,
        /// Bytes free.
        free: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// Too few huge pages.
    #[error(
        "the guest's memory {ids} needs {needed} more huge pages of {page} bytes, but only {free} \
         are free: allocate more (/sys/kernel/mm/hugepages)"
    )]
    HugePages {
        /// The blocks that need them.
        ids: String,
        /// Their size in bytes.
        page: u64,
        /// How many are free.
        free: u64,
        /// How many are needed.
        needed: u64,
    },
    /// Too little memory.
    #[error(
        "the guest's memory {ids} needs {} MiB more, with what QEMU itself needs, but {} MiB are \
         available on this host, with swap space: free some, add swap space, use another destination, or say --allow-overcommit if \
         the guest will not use all of its memory, or other programs will free theirs",
        needed.div_ceil(MIB),
        available / MIB
    )]
    Memory {
        /// The blocks that need it.
        ids: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// Too little memory within a limit.
    #[error(
        "the guest's memory {ids} needs {} MiB more, with what QEMU itself needs, but QEMU's cgroup \
         {} can have {} MiB, with swap space: raise its limit ({}), or say --allow-overcommit if \
         the guest will not use all of its memory",
        needed.div_ceil(MIB),
        limit.cgroup.display(),
        limit.available / MIB,
        limit.file
    )]
    MemoryLimit {
        /// The blocks that need it.
        ids: String,
        /// Bytes needed.
        needed: u64,
        /// The limit.
        limit: CgroupLimit,
    },
    /// Too few huge pages within a limit.
    #[error(
        "the guest's memory {ids} needs {} MiB more in huge pages, but the cgroup {} of {} can have \
         {} MiB: raise its limit ({})",
        needed.div_ceil(MIB),
        limit.cgroup.display(),
        match of_qemu {
            true => "QEMU",
            false => "this hikkoshi, to which the pages that it receives are charged,",
        },
        limit.available / MIB,
        limit.file
    )]
    HugePageLimit {
        /// The blocks that need them.
        ids: String,
        /// Bytes needed.
        needed: u64,
        /// Whether it is QEMU's cgroup, or that of this process.
        of_qemu: bool,
        /// The limit.
        limit: CgroupLimit,
    },
    /// The host's memory could not be determined.
    #[error("looking for the memory that is available for the guest")]
    Available(#[source] io::Error),
    /// The free space could not be determined.
    #[error("checking the free space for the guest's memory \"{id}\"")]
    Query {
        /// The block.
        id: String,
        /// The error of the system call.
        source: io::Error,
    },
}

impl NotEnoughMemory {
    /// Whether [`Overcommit::Allow`](crate::Overcommit::Allow) allows it: memory may become free.
    pub(crate) fn is_overcommit(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::MemoryLimit { .. })
    }
}
