//! Checks that the destination has memory for the guest's: in its file systems, in its pools of
//! huge pages, and altogether.
//!
//! Memory is allocated page by page, when the guest's pages arrive. If it runs out during pre-copy,
//! the migration fails. In post-copy the guest would wait for ever, or the kernel would end the
//! QEMU, and the guest with it.
//!
//! What QEMU has allocated already (`prealloc=on`, `-overcommit mem-lock=on`) is not needed again:
//! its pages are replaced.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hikkoshi_linux::{AvailableMemory, Process, memory_available};
use hikkoshi_memory::{PrivateMemory, RamFile};
use thiserror::Error;

use crate::attach::ram::blocks::RamBlockInfo;
use crate::attach::ram::file::{BlockMemory, FileKind, FileSystem, Kind};

const MIB: u64 = 1 << 20;

/// There is not enough free space for the guest's memory.
#[derive(Debug, Error)]
pub enum FreeSpaceError {
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
        "the guest's memory {ids} needs {} MiB more, but {} MiB are available on this host, with \
         swap space: free some, add swap space, use another destination, or say --allow-overcommit if \
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
        "the guest's memory {ids} needs {} MiB more, but QEMU's cgroup {} can have {} MiB, with swap \
         space: raise its limit, or say --allow-overcommit if the guest will not use all of its \
         memory",
        needed.div_ceil(MIB),
        cgroup.display(),
        available / MIB
    )]
    MemoryLimit {
        /// The blocks that need it.
        ids: String,
        /// Bytes needed.
        needed: u64,
        /// The cgroup's folder.
        cgroup: PathBuf,
        /// Bytes available.
        available: u64,
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

/// What to do about a destination whose free memory is less than the guest's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overcommit {
    /// It does not receive the guest.
    #[default]
    Refuse,
    /// It receives it: the user expects that the memory will suffice. Limits of file systems and
    /// pools of huge pages hold nevertheless.
    Allow,
}

impl FreeSpaceError {
    /// Whether [`Overcommit::Allow`] allows it: memory may become free.
    pub(crate) fn is_overcommit(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::MemoryLimit { .. })
    }
}

/// What several blocks need together.
#[derive(Debug, Default)]
struct Need {
    ids: Vec<String>,
    bytes: u64,
    free: u64,
}

impl Need {
    fn add(&mut self, block: &RamBlockInfo, bytes: u64) {
        // ROMs of a few pages would only make messages long.
        if bytes >= MIB {
            self.ids.push(format!("\"{}\"", block.name));
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn ids(&self) -> String {
        self.ids.join(", ")
    }
}

/// What all blocks need.
#[derive(Debug, Default)]
struct Needs {
    /// By file system.
    systems: BTreeMap<u64, Need>,
    /// By the bytes of a huge page.
    pools: BTreeMap<u64, Need>,
    /// The process's private memory, which its cgroup pays for.
    private: Need,
    /// That, and files that only the host's memory limits.
    memory: Need,
}

/// Checks all blocks of `process` together: several may be on one file system. `reserved` says
/// which of them have reserved their huge pages.
pub(crate) fn check<'a>(
    process: &Process,
    blocks: impl Iterator<Item = (&'a RamBlockInfo, &'a BlockMemory, bool)>,
) -> Result<(), FreeSpaceError> {
    let mut needs = Needs::default();
    for (block, memory, reserved) in blocks {
        needs
            .add(block, memory, reserved)
            .map_err(|source| FreeSpaceError::Query {
                id: block.name.clone(),
                source,
            })?;
    }
    let available = memory_available(process).map_err(FreeSpaceError::Available)?;
    needs.check(&available)
}

impl Needs {
    fn add(
        &mut self,
        block: &RamBlockInfo,
        memory: &BlockMemory,
        reserved: bool,
    ) -> io::Result<()> {
        let held = memory.backing.private().map(PrivateMemory::held_bytes);
        let private = held.transpose()?;
        let private = private.map(|held| block.total.saturating_sub(held));
        match &memory.kind {
            Kind::Shared(file) | Kind::Private(file) if file.system == FileSystem::Huge => {
                // Otherwise QEMU reserved them when it mapped the file, or it would not have
                // started.
                if !reserved {
                    let need = self.pools.entry(block.page_size).or_default();
                    need.free = free_huge_pages(block.page_size)?.saturating_mul(block.page_size);
                    need.add(block, private.unwrap_or_else(|| absent(block, file)));
                }
                return Ok(());
            }
            Kind::Shared(file) => self.add_file(block, memory.backing.file(), file)?,
            // A page that the process writes is its own, and takes a page of zeros in the tmpfs.
            Kind::Private(file) if file.system == FileSystem::Tmpfs => {
                let opened = memory.backing.private().and_then(PrivateMemory::file);
                self.add_file(block, opened, file)?;
            }
            Kind::Private(_) | Kind::Anonymous => {}
        }
        let private = private.unwrap_or(0);
        self.private.add(block, private);
        self.memory.add(block, private);
        Ok(())
    }

    fn add_file(
        &mut self,
        block: &RamBlockInfo,
        opened: Option<&RamFile>,
        file: &FileKind,
    ) -> io::Result<()> {
        let needed = absent(block, file);
        let Some(opened) = opened else {
            return Ok(());
        };
        let system = rustix::fs::fstatvfs(opened.as_fd())?;
        if system.f_blocks == 0 {
            // A tmpfs without a size limit.
            self.memory.add(block, needed);
            return Ok(());
        }
        let need = self.systems.entry(file.metadata.dev()).or_default();
        need.free = system.f_bavail.saturating_mul(system.f_frsize);
        need.add(block, needed);
        Ok(())
    }

    fn check(self, available: &AvailableMemory) -> Result<(), FreeSpaceError> {
        for need in self.systems.into_values() {
            if need.bytes > need.free {
                return Err(FreeSpaceError::FileSystem {
                    ids: need.ids(),
                    free: need.free,
                    needed: need.bytes,
                });
            }
        }
        for (page, need) in self.pools {
            if need.bytes > need.free {
                return Err(FreeSpaceError::HugePages {
                    ids: need.ids(),
                    page,
                    free: need.free / page,
                    needed: need.bytes / page,
                });
            }
        }
        if self.memory.bytes > available.host {
            return Err(FreeSpaceError::Memory {
                ids: self.memory.ids(),
                needed: self.memory.bytes,
                available: available.host,
            });
        }
        match &available.cgroup {
            Some((free, cgroup)) if self.private.bytes > *free => {
                Err(FreeSpaceError::MemoryLimit {
                    ids: self.private.ids(),
                    needed: self.private.bytes,
                    cgroup: cgroup.clone(),
                    available: *free,
                })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of the block that its file does not have yet.
fn absent(block: &RamBlockInfo, file: &FileKind) -> u64 {
    // In blocks of 512 bytes on every file system.
    let allocated = file.metadata.blocks().saturating_mul(512);
    block.total.saturating_sub(allocated)
}

/// Huge pages of `size` bytes that are neither used nor reserved, plus those that
/// the pool may still grow by (overcommit).
fn free_huge_pages(size: u64) -> io::Result<u64> {
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size / 1024);
    let read = |name: &str| -> io::Result<u64> {
        let text = std::fs::read_to_string(Path::new(&folder).join(name))?;
        text.trim()
            .parse()
            .map_err(|_| io::ErrorKind::InvalidData.into())
    };
    let free = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
    let growth = read("nr_overcommit_hugepages")?.saturating_sub(read("surplus_hugepages")?);
    Ok(free.saturating_add(growth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(private: u64, files: u64) -> Needs {
        let block = RamBlockInfo {
            name: "pc.ram".into(),
            page_size: 4096,
            offset: 0,
            used: 1 << 30,
            total: 1 << 30,
            host: None,
            read_only: None,
        };
        let mut needs = Needs::default();
        needs.private.add(&block, private * MIB);
        needs.memory.add(&block, (private + files) * MIB);
        needs
    }

    fn available(host: u64, cgroup: Option<u64>) -> AvailableMemory {
        AvailableMemory {
            host: host * MIB,
            cgroup: cgroup.map(|limit| (limit * MIB, "/cgroup/qemu".into())),
        }
    }

    #[test]
    fn memory_has_to_fit_into_the_host_and_private_memory_into_the_cgroup() {
        needs(100, 50).check(&available(150, None)).unwrap();
        needs(100, 50).check(&available(150, Some(100))).unwrap();
        let text = |available| needs(100, 50).check(&available).unwrap_err().to_string();
        assert_eq!(
            text(available(149, None)),
            "the guest's memory \"pc.ram\" needs 150 MiB more, but 149 MiB are available on this \
             host, with swap space: free some, add swap space, use another destination, or say \
             --allow-overcommit if the guest will not use all of its memory, or other programs \
             will free theirs"
        );
        assert_eq!(
            text(available(200, Some(99))),
            "the guest's memory \"pc.ram\" needs 100 MiB more, but QEMU's cgroup /cgroup/qemu can \
             have 99 MiB, with swap space: raise its limit, or say --allow-overcommit if the guest \
             will not use all of its memory"
        );
    }
}
