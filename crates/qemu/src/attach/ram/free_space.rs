//! Checks that the destination's file systems have free space for the guest's
//! memory.
//!
//! A RAM file is sparse: QEMU sets its length, and memory is allocated page by
//! page. If the file system fills up during a pre-copy migration, the migration
//! fails. In post-copy the guest would wait for ever.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use thiserror::Error;

use crate::attach::ram::blocks::RamBlockInfo;
use crate::attach::ram::file::{BlockMemory, FileSystem, Kind};

/// There is not enough free space for the guest's memory.
#[derive(Debug, Error)]
pub enum FreeSpaceError {
    /// The tmpfs is full, or too small.
    #[error(
        "the file system of the guest's memory {ids} has {free} bytes free, but {needed} more are \
         needed: enlarge it (mount -o remount,size=…) or use another file system"
    )]
    FileSystem {
        /// The backends on it.
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
        /// The backends that need them.
        ids: String,
        /// Their size in bytes.
        page: u64,
        /// How many are free.
        free: u64,
        /// How many are needed.
        needed: u64,
    },
    /// The free space could not be determined.
    #[error("checking the free space for the guest's memory \"{id}\"")]
    Query {
        /// The backend.
        id: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// What all backends on one file system, or from one pool of huge pages, need.
#[derive(Debug, Default)]
struct Need {
    ids: Vec<String>,
    bytes: u64,
    free: u64,
}

/// Checks all blocks together: several may be on one file system. `reserved` says which of
/// them have reserved their huge pages.
pub(crate) fn check<'a>(
    blocks: impl Iterator<Item = (&'a RamBlockInfo, &'a BlockMemory, bool)>,
) -> Result<(), FreeSpaceError> {
    let mut systems: BTreeMap<u64, Need> = BTreeMap::new();
    let mut pools: BTreeMap<u64, Need> = BTreeMap::new();
    for (block, memory, reserved) in blocks {
        let failed = |source| FreeSpaceError::Query {
            id: block.name.clone(),
            source,
        };
        let (file, shared) = match &memory.kind {
            Kind::Shared(file) => (file, true),
            Kind::Private(file) => (file, false),
            Kind::Anonymous => continue,
        };
        // In blocks of 512 bytes on every file system.
        let allocated = file.metadata.blocks().saturating_mul(512);
        let needed = block.total.saturating_sub(allocated);
        let need = if file.system == FileSystem::Huge {
            if reserved {
                // QEMU reserved them when it mapped the file; otherwise it would not have
                // started.
                continue;
            }
            let need = pools.entry(block.page_size).or_default();
            need.free = free_huge_pages(block.page_size)
                .map_err(failed)?
                .saturating_mul(block.page_size);
            need
        } else {
            let Some(backing) = memory.backing.file().filter(|_| shared) else {
                continue;
            };
            let system =
                rustix::fs::fstatvfs(backing.file()).map_err(|errno| failed(errno.into()))?;
            if system.f_blocks == 0 {
                // A tmpfs without a size limit.
                continue;
            }
            let need = systems.entry(file.metadata.dev()).or_default();
            need.free = system.f_bavail.saturating_mul(system.f_frsize);
            need
        };
        need.ids.push(format!("\"{}\"", block.name));
        need.bytes = need.bytes.saturating_add(needed);
    }
    for need in systems.into_values() {
        if need.bytes > need.free {
            return Err(FreeSpaceError::FileSystem {
                ids: need.ids.join(", "),
                free: need.free,
                needed: need.bytes,
            });
        }
    }
    for (page, need) in pools {
        if need.bytes > need.free {
            return Err(FreeSpaceError::HugePages {
                ids: need.ids.join(", "),
                page,
                free: need.free / page,
                needed: need.bytes / page,
            });
        }
    }
    Ok(())
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
