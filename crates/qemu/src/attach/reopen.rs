//! Opening the very file that a process has mapped.
//!
//! hikkoshi often runs as root, and QEMU does not: a QEMU that its guest has
//! taken over must not make hikkoshi read or write a file that QEMU itself could
//! not. So the path that QEMU gives is never opened. A file is opened
//!
//! 1. by way of QEMU's mapping (`/proc/PID/map_files`) or, where we may not do
//!    that, by way of one of QEMU's descriptors (`/proc/PID/fd`);
//! 2. at first with `O_PATH`, which does nothing to the file: no FIFO is waited
//!    for, no device is touched;
//! 3. for reading or writing only if it is a regular file, has the numbers
//!    that were expected, and is mapped **shared and writable** by the process.
//!    The kernel allows that only to who has opened the file for writing, and it
//!    is asked while we hold the file, so that its number means no other one.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hikkoshi_linux::Process;
use rustix::fs::{Mode, OFlags};

use crate::attach::maps::{self, Mapping};

/// What we need to do with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// At the source.
    Read,
    /// At the destination.
    Write,
}

/// A stretch of a file, and where a process has mapped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedFileRange {
    /// The file system's number.
    pub(crate) device: u64,
    /// The file's number on it.
    pub(crate) inode: u64,
    /// Where in the file it begins, in bytes.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Where in the process's memory it begins.
    pub(crate) address: u64,
}

impl MappedFileRange {
    /// The mapping that shows it, if it may be written there.
    fn mapping<'a>(&self, mappings: &'a [Mapping]) -> Option<&'a Mapping> {
        mappings.iter().find(|mapping| {
            mapping.shared
                && mapping.writable
                && (mapping.device, mapping.inode) == (self.device, self.inode)
                && mapping.address_of(self.offset, self.bytes) == Some(self.address)
        })
    }

    fn is_of(&self, metadata: &Metadata) -> bool {
        (metadata.dev(), metadata.ino()) == (self.device, self.inode)
    }
}

/// Opens the file of which `process` shows `stretch`.
///
/// # Errors
///
/// `PermissionDenied` when the process does not have it mapped there, shared and
/// writable; others as `open(2)`.
pub(crate) fn mapped(
    process: &Process,
    stretch: &MappedFileRange,
    access: FileAccess,
) -> io::Result<File> {
    let mapping = first_mapping(process, stretch)?;
    let entry = format!(
        "/proc/{}/map_files/{:x}-{:x}",
        process.pid(),
        mapping.start,
        mapping.first_end
    );
    // Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN (proc_pid_map_files(5)).
    let pinned = pin(Path::new(&entry), OFlags::empty(), stretch)
        .or_else(|error| by_descriptor(process, stretch)?.ok_or(error))?;
    // Now that the file is held its numbers are no other file's.
    first_mapping(process, stretch)?;
    reopen(&pinned, access)
}

/// Opens a file of a process that has ended, of which only the path is left.
///
/// # Errors
///
/// As `open(2)`; `ELOOP` when the path ends in a symbolic link, `NotFound` when
/// it leads to something else.
pub(crate) fn at_path(
    path: &Path,
    stretch: &MappedFileRange,
    access: FileAccess,
) -> io::Result<File> {
    reopen(&pin(path, OFlags::NOFOLLOW, stretch)?, access)
}

fn first_mapping(process: &Process, stretch: &MappedFileRange) -> io::Result<Mapping> {
    let mappings = process.open_proc("maps").and_then(maps::read)?;
    stretch.mapping(&mappings).cloned().ok_or_else(|| {
        let what = "QEMU does not have it mapped there for writing (any more)";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    })
}

fn by_descriptor(process: &Process, stretch: &MappedFileRange) -> io::Result<Option<File>> {
    for entry in std::fs::read_dir(format!("/proc/{}/fd", process.pid()))? {
        // Most lead to something else, and some are closed by now.
        if let Ok(pinned) = pin(&entry?.path(), OFlags::empty(), stretch) {
            return Ok(Some(pinned));
        }
    }
    Ok(None)
}

/// Holds the file at `path` without opening it, if it is a regular one and the
/// one of `stretch`.
fn pin(path: &Path, flags: OFlags, stretch: &MappedFileRange) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    let pinned = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = pinned.metadata()?;
    if metadata.is_symlink() {
        return Err(rustix::io::Errno::LOOP.into());
    }
    if !metadata.is_file() || !stretch.is_of(&metadata) {
        let what = "another file is there now";
        return Err(io::Error::new(io::ErrorKind::NotFound, what));
    }
    Ok(pinned)
}

fn reopen(pinned: &File, access: FileAccess) -> io::Result<File> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", pinned.as_raw_fd()));
    File::options()
        .read(true)
        .write(access == FileAccess::Write)
        .open(path)
}
