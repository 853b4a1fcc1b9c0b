//! Finds what holds the memory of a RAM block, and opens it.
//!
//! The mapping decides, not what QMP reports: a range of the process's addresses maps a
//! file shared (a memfd, or a file on tmpfs, hugetlbfs or a disk), a file privately (pages
//! that QEMU has written are the process's own), or no file.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_memory::{Backing, PrivateMemory, ProcessMemory, RamFile};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};

use crate::process::maps::Area;
use crate::process::reopen::{self, FileAccess, MappedFileRange};
use crate::ram::RamError;
use crate::ram::blocks::RamBlockInfo;
use crate::ram::huge_tmpfs;

/// The opened memory of a block.
#[derive(Debug)]
pub(crate) struct BlockMemory {
    /// The memory.
    pub(crate) backing: Backing,
    /// What it is.
    pub(crate) kind: Kind,
    /// That other users can read it, for people.
    pub(crate) exposed: Option<String>,
}

/// What holds the memory of a block.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A file that is mapped shared. With its metadata when it was opened.
    Shared(FileKind),
    /// A file that is mapped privately.
    Private(FileKind),
    /// No file.
    Anonymous,
}

/// A file that holds memory.
#[derive(Debug)]
pub(crate) struct FileKind {
    /// Its metadata when it was opened.
    pub(crate) metadata: Metadata,
    /// Its file system.
    pub(crate) system: FileSystem,
}

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// tmpfs, and the kernel's own one, on which memfds are.
    Tmpfs,
    /// hugetlbfs, also of a memfd.
    Huge,
    /// ext4 or XFS. Their files are read and mapped through the same page cache, so `pread`
    /// returns what the guest has written, written back or not. Not with DAX, which has no page
    /// cache.
    Disk,
    /// Another one.
    Other,
}

/// Modes of files and folders, see inode(7).
const OTHERS_READ: u32 = 0o004;
const OTHERS_SEARCH: u32 = 0o001;

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// ext4 and XFS; see statfs(2). The dirty log's tests (`dirty/tests/pagemap/disk_files.rs`) passed
/// on both, and on Btrfs. But the device number of a file on Btrfs differs between
/// `/proc/PID/maps` and `stat(2)`, so that `reopen` does not find such a file.
const DISK_MAGICS: [i64; 2] = [0xef53, 0x5846_5342];

impl FileSystem {
    /// The file system of `file`, and the bytes of its pages.
    ///
    /// # Errors
    ///
    /// As `fstatfs(2)`.
    pub(crate) fn of_file(file: impl AsFd) -> io::Result<(Self, u64)> {
        let system = rustix::fs::fstatfs(&file)?;
        let magic: i64 = system.f_type;
        Ok(match magic {
            TMPFS_MAGIC => (Self::Tmpfs, 4096),
            HUGETLBFS_MAGIC => (Self::Huge, u64::try_from(system.f_bsize).unwrap_or(0)),
            magic if DISK_MAGICS.contains(&magic) && !is_dax(file)? => (Self::Disk, 4096),
            _ => (Self::Other, 4096),
        })
    }
}

/// Whether the file's pages are mapped from persistent memory, without the page cache (statx(2)).
/// Write tracking was not tested there.
fn is_dax(file: impl AsFd) -> io::Result<bool> {
    let (flags, mask) = (AtFlags::EMPTY_PATH, StatxFlags::empty());
    let status = rustix::fs::statx(file, "", flags, mask)?;
    Ok(status.stx_attributes.contains(StatxAttributes::DAX))
}

/// Opens the memory of `block`, which begins at `address` of the process. `areas` are the
/// process's.
pub(crate) fn open(
    process: &Arc<Process>,
    areas: &[Area],
    block: &RamBlockInfo,
    address: u64,
    access: FileAccess,
) -> Result<BlockMemory, RamError> {
    let area = single_mapping(process, areas, block, address)?;
    if !area.is_file() {
        return Ok(BlockMemory {
            backing: Backing::Private(private_memory(process, block, address, access)?),
            kind: Kind::Anonymous,
            exposed: None,
        });
    }
    let range = MappedFileRange {
        device: area.device,
        inode: area.inode,
        offset: area.offset.saturating_add(address - area.start),
        bytes: block.total,
        address,
    };
    let cannot = |source| RamError::Open {
        id: block.name.clone(),
        path: area.path.clone(),
        source,
    };
    let file = if area.shared {
        check_mapped_once(areas, block, &area, &range)?;
        reopen::mapped(process, &range, access)
    } else {
        reopen::mapped_privately(process, &range, access)
    };
    let file = file.map_err(cannot)?;
    let kind = describe(&file, &area, block, &range)?;
    if area.shared {
        check_shared(&file, &area, &kind, access).map_err(|error| match error {
            Unsuitable::FileSystem => RamError::FileSystem {
                id: block.name.clone(),
                path: area.path.clone(),
            },
            Unsuitable::Read(source) => cannot(source),
        })?;
        let file = RamFile::new(file, range.offset);
        let file = match access {
            FileAccess::Read => file,
            FileAccess::Write => fill_in_process(process, file, block, &range, &kind)?,
        };
        return Ok(BlockMemory {
            exposed: exposed(process, &area, &kind),
            backing: Backing::File(file),
            kind: Kind::Shared(kind),
        });
    }
    let memory = private_memory(process, block, address, access)?;
    Ok(BlockMemory {
        backing: Backing::Private(memory.over_file(RamFile::new(file, range.offset))),
        kind: Kind::Private(kind),
        exposed: None,
    })
}

/// The first area of the block, if all of the block is one readable and writable mapping.
fn single_mapping(
    process: &Process,
    areas: &[Area],
    block: &RamBlockInfo,
    address: u64,
) -> Result<Area, RamError> {
    let id = || block.name.clone();
    let not_mapped = || RamError::NotMapped {
        id: id(),
        pid: process.pid(),
        name: crate::process::name(process),
    };
    let end = address.checked_add(block.total).ok_or_else(not_mapped)?;
    let first = areas.partition_point(|area| area.end <= address);
    let mut rest = areas[first..].iter();
    let area = rest.next().filter(|area| area.start <= address);
    let area = area.ok_or_else(not_mapped)?;
    let mut last = area;
    while last.end < end {
        match rest.next().filter(|next| next.start == last.end) {
            Some(next) if last.is_continued_by(next) => last = next,
            Some(_) => return Err(RamError::Mixed { id: id() }),
            None => return Err(not_mapped()),
        }
    }
    if !area.readable {
        return Err(not_mapped());
    }
    if !area.writable {
        return Err(RamError::ReadOnly { id: id() });
    }
    Ok(area.clone())
}

/// Checks that no other shared mapping of the process contains a part of the block: writes
/// through it would not be recorded.
fn check_mapped_once(
    areas: &[Area],
    block: &RamBlockInfo,
    area: &Area,
    range: &MappedFileRange,
) -> Result<(), RamError> {
    let own = range.address..range.address.saturating_add(range.bytes);
    let end = range.offset.saturating_add(range.bytes);
    let others = areas.iter().filter(|other| {
        other.shared
            && (other.device, other.inode) == (range.device, range.inode)
            && !own.contains(&other.start)
            && !(other.start < own.start && own.start < other.end)
            && other.offset < end
            && range.offset < other.offset.saturating_add(other.bytes())
    });
    match others.count() {
        0 => Ok(()),
        others => Err(RamError::Ambiguous {
            id: block.name.clone(),
            path: area.path.clone(),
            mappings: others + 1,
        }),
    }
}

/// Lets QEMU's process be charged for the pages of a file that it maps shared.
fn fill_in_process(
    process: &Arc<Process>,
    file: RamFile,
    block: &RamBlockInfo,
    range: &MappedFileRange,
    kind: &FileKind,
) -> Result<RamFile, RamError> {
    if kind.system != FileSystem::Tmpfs {
        return Ok(file);
    }
    // If it is not known, pages are written, which suits both.
    let huge = huge_tmpfs::cause(process, file.as_fd()).map_or(true, |cause| cause.is_some());
    let place = ProcessMemory::open(Arc::clone(process), range.address, range.bytes, true);
    let place = place.map_err(|source| RamError::OpenMemory {
        id: block.name.clone(),
        pid: process.pid(),
        source,
    })?;
    Ok(file.mapped_at(place, huge))
}

fn private_memory(
    process: &Arc<Process>,
    block: &RamBlockInfo,
    address: u64,
    access: FileAccess,
) -> Result<PrivateMemory, RamError> {
    let writable = access == FileAccess::Write;
    PrivateMemory::open(Arc::clone(process), address, block.total, writable).map_err(|source| {
        RamError::OpenMemory {
            id: block.name.clone(),
            pid: process.pid(),
            source,
        }
    })
}

fn describe(
    file: &File,
    area: &Area,
    block: &RamBlockInfo,
    range: &MappedFileRange,
) -> Result<FileKind, RamError> {
    let cannot = |source| RamError::Open {
        id: block.name.clone(),
        path: area.path.clone(),
        source,
    };
    let metadata = file.metadata().map_err(cannot)?;
    let (system, page) = FileSystem::of_file(file).map_err(cannot)?;
    let needed = range.offset.saturating_add(range.bytes);
    // A page after the end of a file cannot be read.
    if metadata.len() < needed {
        return Err(RamError::Short {
            id: block.name.clone(),
            path: area.path.clone(),
            bytes: metadata.len(),
            needed,
        });
    }
    if page != block.page_size {
        return Err(RamError::PageSize {
            id: block.name.clone(),
            path: area.path.clone(),
            file: page,
            block: block.page_size,
        });
    }
    Ok(FileKind { metadata, system })
}

enum Unsuitable {
    FileSystem,
    Read(io::Error),
}

/// What is reported if other users can read a shared file.
fn exposed(process: &Process, area: &Area, kind: &FileKind) -> Option<String> {
    let place = path_from_outside(process, &area.path);
    others_can_read(&place, &kind.metadata).then(|| {
        format!(
            "other users of this host can read the guest's memory: its file {} has mode {:o}, \
             as QEMU creates it; remove that permission (chmod o= FILE, possible at any time), or use \
             a folder that they cannot enter",
            area.path,
            kind.metadata.mode() & 0o7777
        )
    })
}

/// Checks that a shared file can be used.
fn check_shared(
    file: &File,
    area: &Area,
    kind: &FileKind,
    access: FileAccess,
) -> Result<(), Unsuitable> {
    if kind.system == FileSystem::Other {
        return Err(Unsuitable::FileSystem);
    }
    if access == FileAccess::Read && kind.system != FileSystem::Huge {
        // hugetlbfs supports reads, too, but only of whole pages.
        let mut byte = [0];
        file.read_exact_at(&mut byte, area.offset)
            .map_err(Unsuitable::Read)?;
    }
    Ok(())
}

/// Converts QEMU's path to ours: QEMU may have another root.
fn path_from_outside(process: &Process, given: &str) -> PathBuf {
    Path::new(&format!("/proc/{}/root", process.pid())).join(given.trim_start_matches('/'))
}

/// Whether all users of this host can read the file with this metadata at this path,
/// according to its mode and its folders' modes.
fn others_can_read(place: &Path, file: &Metadata) -> bool {
    let there = |path: &Path| std::fs::metadata(path).ok();
    let at_place =
        there(place).is_some_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino()));
    at_place
        && file.mode() & OTHERS_READ != 0
        && place.ancestors().skip(1).all(|folder| {
            // The prefix in /proc/PID, which other users cannot follow.
            folder.starts_with("/proc") && folder.components().count() <= 4
                || there(folder).is_some_and(|folder| folder.mode() & OTHERS_SEARCH != 0)
        })
}

#[cfg(test)]
mod hostile_process_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn readability_depends_on_the_modes_of_all_folders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ram");
        std::fs::write(&path, b"memory").unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let place = path_from_outside(&own, path.to_str().unwrap());
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (folder_mode, mode, expected) in [
            (0o711, 0o644, true),
            (0o711, 0o640, false),
            (0o700, 0o644, false),
        ] {
            set(folder.path(), folder_mode);
            set(&path, mode);
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(others_can_read(&place, &metadata), expected, "{mode:o}");
        }
        let gone = std::fs::metadata(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!others_can_read(&place, &gone));
    }
}
