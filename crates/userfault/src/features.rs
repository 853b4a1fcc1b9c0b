//! Features of a userfaultfd, and which of them this kernel supports.

use std::fmt;
use std::ops::BitOr;

/// A set of userfaultfd features, the bits that `UFFDIO_API` negotiates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features(pub u64);

/// Name and first kernel version of each bit, by bit number (`linux/userfaultfd.h`,
/// `userfaultfd(2)`).
const NAMES: [(&str, &str); 17] = [
    ("PAGEFAULT_FLAG_WP", "5.7"),
    ("EVENT_FORK", "4.11"),
    ("EVENT_REMAP", "4.11"),
    ("EVENT_REMOVE", "4.11"),
    ("MISSING_HUGETLBFS", "4.11"),
    ("MISSING_SHMEM", "4.11"),
    ("EVENT_UNMAP", "4.11"),
    ("SIGBUS", "4.14"),
    ("THREAD_ID", "4.14"),
    ("MINOR_HUGETLBFS", "5.13"),
    ("MINOR_SHMEM", "5.14"),
    ("EXACT_ADDRESS", "5.18"),
    ("WP_HUGETLBFS_SHMEM", "5.19"),
    ("WP_UNPOPULATED", "6.4"),
    ("POISON", "6.6"),
    ("WP_ASYNC", "6.7"),
    ("MOVE", "6.8"),
];

impl Features {
    /// No optional feature.
    pub const NONE: Self = Self(0);
    /// Events distinguish write-protect faults from missing faults.
    pub const PAGEFAULT_FLAG_WP: Self = Self(1 << 0);
    /// Reports `fork` and passes a descriptor for the child.
    pub const EVENT_FORK: Self = Self(1 << 1);
    /// Reports `mremap`.
    pub const EVENT_REMAP: Self = Self(1 << 2);
    /// Reports `madvise(MADV_DONTNEED / MADV_REMOVE)`; the caller blocks until the event is read.
    pub const EVENT_REMOVE: Self = Self(1 << 3);
    /// Missing faults on hugetlbfs.
    pub const MISSING_HUGETLBFS: Self = Self(1 << 4);
    /// Missing faults on shared memory (tmpfs, memfd).
    pub const MISSING_SHMEM: Self = Self(1 << 5);
    /// Reports `munmap`.
    pub const EVENT_UNMAP: Self = Self(1 << 6);
    /// A fault event contains the thread ID.
    pub const THREAD_ID: Self = Self(1 << 8);
    /// A fault event contains the exact address, not the address of the page.
    pub const EXACT_ADDRESS: Self = Self(1 << 11);
    /// Write protection of shared memory and hugetlbfs.
    pub const WP_HUGETLBFS_SHMEM: Self = Self(1 << 12);
    /// Write protection of pages that are not populated.
    pub const WP_UNPOPULATED: Self = Self(1 << 13);
    /// A write to a protected page does not block: the kernel allows it and records it. Implies
    /// [`Self::WP_UNPOPULATED`]. Bit 15 (some public code uses a wrong bit).
    pub const WP_ASYNC: Self = Self(1 << 15);

    /// Features needed to handle missing pages of a guest: shared and hugetlb memory, the thread
    /// ID, and the exact address.
    pub const FOR_MISSING: Self = Self(
        Self::MISSING_SHMEM.0
            | Self::MISSING_HUGETLBFS.0
            | Self::THREAD_ID.0
            | Self::EXACT_ADDRESS.0,
    );

    /// Features needed for a dirty log: asynchronous write protection of shared and hugetlb memory.
    pub const FOR_DIRTY_LOG: Self = Self(
        Self::PAGEFAULT_FLAG_WP.0
            | Self::WP_HUGETLBFS_SHMEM.0
            | Self::WP_UNPOPULATED.0
            | Self::WP_ASYNC.0,
    );

    /// Whether every feature of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The features of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Features {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// `WP_ASYNC (Linux 6.7), MOVE (Linux 6.8)`.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut separator = "";
        for bit in (0..u64::BITS).filter(|bit| self.0 & (1 << bit) != 0) {
            f.write_str(separator)?;
            separator = ", ";
            match NAMES.get(bit as usize) {
                Some((name, kernel)) => write!(f, "{name} (Linux {kernel})")?,
                None => write!(f, "feature bit {bit}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_features_are_named_with_their_kernel_version() {
        let wanted = Features::FOR_DIRTY_LOG;
        let offered = Features::PAGEFAULT_FLAG_WP | Features::WP_HUGETLBFS_SHMEM;
        assert_eq!(
            wanted.without(offered).to_string(),
            "WP_UNPOPULATED (Linux 6.4), WP_ASYNC (Linux 6.7)"
        );
        assert_eq!(Features(1 << 40).to_string(), "feature bit 40");
        assert_eq!(Features::NONE.to_string(), "none");
    }

    #[test]
    fn wp_async_is_bit_fifteen() {
        assert_eq!(Features::WP_ASYNC.0, 0x8000);
        assert_eq!(NAMES[15].0, "WP_ASYNC");
    }
}
