//! The kind and the layout of a machine's memory.

mod prepared;

pub(crate) use prepared::PreparedRam;

use crate::HugePageSize;
use std::fmt;

/// Where a machine's memory comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RamBackend {
    /// `-m` alone: QEMU's default, private anonymous memory without a memory backend. It has one
    /// block only.
    Default,
    /// `memory-backend-ram`: private anonymous memory.
    Anonymous,
    /// `memory-backend-ram,share=on`: a shared anonymous mapping, a file without a name.
    SharedAnonymous,
    /// `memory-backend-memfd`.
    Memfd {
        /// Whether it is mapped shared.
        share: bool,
        /// Whether its size is sealed, as QEMU does by default.
        seal: bool,
        /// The size of its huge pages, if it has any.
        huge: Option<HugePageSize>,
    },
    /// A file on tmpfs, or in [`VmConfig::ram_directory`](crate::VmConfig::ram_directory).
    File {
        /// Whether it is mapped shared.
        share: bool,
    },
    /// A file on the build folder's disk.
    DiskFile {
        /// Whether it is mapped shared.
        share: bool,
    },
    /// A file on hugetlbfs.
    Hugetlbfs {
        /// The size of its pages.
        size: HugePageSize,
        /// Whether it is mapped shared.
        share: bool,
    },
}

impl RamBackend {
    /// A memfd as QEMU makes it by default: shared and sealed.
    pub const MEMFD: Self = Self::Memfd {
        share: true,
        seal: true,
        huge: None,
    };
}

impl fmt::Display for RamBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = |share| if share { "shared" } else { "private" };
        match *self {
            Self::Default => f.write_str("-m"),
            Self::Anonymous => f.write_str("anonymous"),
            Self::SharedAnonymous => f.write_str("anonymous shared"),
            Self::Memfd { share, seal, huge } => {
                write!(f, "memfd {}", mapped(share))?;
                if !seal {
                    f.write_str(", not sealed")?;
                }
                huge.map_or(Ok(()), |size| write!(f, ", pages of {size}"))
            }
            Self::File { share } => write!(f, "tmpfs file {}", mapped(share)),
            Self::DiskFile { share } => write!(f, "disk file {}", mapped(share)),
            Self::Hugetlbfs { size, share } => {
                write!(f, "hugetlbfs {size} {}", mapped(share))
            }
        }
    }
}

/// A DIMM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Dimm {
    mib: u64,
    /// Whether a machine that boots gets it by [`Vm::plug_dimm`](crate::Vm::plug_dimm) only.
    hot: bool,
}

/// A machine's memory. Sizes are in MiB.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ram {
    backend: RamBackend,
    /// The size of each block, without the DIMM's. More than one: NUMA nodes.
    blocks: Vec<u64>,
    dimm: Option<Dimm>,
    prealloc: bool,
    locked: bool,
    default_name: bool,
    /// Whether its huge pages are already in the kernel's pool.
    reserved: bool,
}

impl Ram {
    /// One block of `mib` MiB.
    pub fn new(backend: RamBackend, mib: u64) -> Self {
        Self {
            backend,
            blocks: vec![mib],
            dimm: None,
            prealloc: false,
            locked: false,
            default_name: false,
            reserved: false,
        }
    }

    /// One shared file of `mib` MiB on tmpfs.
    pub fn shared(mib: u64) -> Self {
        Self::new(RamBackend::File { share: true }, mib)
    }

    /// One shared file on hugetlbfs with pages of 2 MiB; `mib` is even.
    pub fn huge_2m(mib: u64) -> Self {
        let (size, share) = (HugePageSize::Mib2, true);
        Self::new(RamBackend::Hugetlbfs { size, share }, mib)
    }

    /// One shared file on hugetlbfs with pages of 1 GiB.
    pub fn huge_1g(gib: u64) -> Self {
        let (size, share) = (HugePageSize::Gib1, true);
        Self::new(RamBackend::Hugetlbfs { size, share }, gib * 1024)
    }

    /// NUMA nodes of these sizes, a block each.
    #[must_use]
    pub fn numa(mut self, nodes: &[u64]) -> Self {
        self.blocks = nodes.to_vec();
        self
    }

    /// Adds a DIMM, a block of its own; `mib` is a multiple of 128.
    #[must_use]
    pub fn dimm(mut self, mib: u64) -> Self {
        self.dimm = Some(Dimm { mib, hot: false });
        self
    }

    /// Adds a DIMM, but a machine that boots has only room for it, and gets it by
    /// [`Vm::plug_dimm`](crate::Vm::plug_dimm). A destination has it from the start.
    #[must_use]
    pub fn hot_dimm(mut self, mib: u64) -> Self {
        self.dimm = Some(Dimm { mib, hot: true });
        self
    }

    /// Makes QEMU fill all of the memory at start (`prealloc=on`).
    #[must_use]
    pub fn prealloc(mut self) -> Self {
        self.prealloc = true;
        self
    }

    /// Uses huge pages that the caller has reserved ([`HugePages`](crate::HugePages)), and adds
    /// none: a later machine would find too little contiguous memory for pages of 1 GiB if others
    /// had used it in between.
    #[must_use]
    pub fn reserved(mut self) -> Self {
        self.reserved = true;
        self
    }

    /// Makes QEMU lock all of its memory (`-overcommit mem-lock=on`).
    #[must_use]
    pub fn locked(mut self) -> Self {
        self.locked = true;
        self
    }

    /// Gives the block the name that it has with `-m` alone, as libvirt does, so that the guest can
    /// move between such a machine and this one.
    #[must_use]
    pub fn default_name(mut self) -> Self {
        self.default_name = true;
        self
    }

    /// Whether QEMU locks its memory.
    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }

    /// Where the memory comes from.
    pub fn backend(&self) -> RamBackend {
        self.backend
    }

    /// The total size, MiB, with the DIMM's.
    pub fn mib(&self) -> u64 {
        self.blocks.iter().sum::<u64>() + self.dimm.map_or(0, |dimm| dimm.mib)
    }
}

impl fmt::Display for Ram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.backend)?;
        if self.blocks.len() > 1 {
            write!(f, ", {} NUMA nodes", self.blocks.len())?;
        }
        match self.dimm {
            Some(Dimm { hot: true, .. }) => f.write_str(", hot-plugged DIMM")?,
            Some(_) => f.write_str(", DIMM")?,
            None => {}
        }
        if self.prealloc {
            f.write_str(", prealloc")?;
        }
        if self.locked {
            f.write_str(", mem-lock")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_described() {
        let memfd = RamBackend::Memfd {
            share: false,
            seal: true,
            huge: Some(HugePageSize::Mib2),
        };
        let ram = Ram::new(memfd, 0).numa(&[128, 192]).hot_dimm(128);
        assert_eq!(ram.mib(), 448);
        assert_eq!(
            ram.prealloc().to_string(),
            "memfd private, pages of 2 MiB, 2 NUMA nodes, hot-plugged DIMM, prealloc"
        );
        assert_eq!(Ram::shared(1).to_string(), "tmpfs file shared");
    }
}
