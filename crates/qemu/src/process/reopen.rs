//! Opens exactly the file that a process has mapped.
//!
//! hikkoshi often runs as root, and QEMU does not. A QEMU that is compromised by its
//! guest must not make hikkoshi read or write a file that QEMU itself cannot access. So
//! the path that QEMU reports is never opened. A file is opened
//!
//! 1. through QEMU's mapping (`/proc/PID/map_files`) or, if we may not do that, through
//!    one of QEMU's descriptors (`/proc/PID/fd`);
//! 2. at first with `O_PATH`, which has no effect on the file: it neither blocks on a
//!    FIFO nor opens a device;
//! 3. for reading or writing only if it is a regular file, has the expected device and
//!    inode numbers, and is mapped **shared and writable** by the process. The kernel
//!    allows such a mapping only to a process that opened the file for writing. The
//!    mapping is checked while we hold the file, so that its numbers cannot belong to
//!    another file. The kernel allows a private mapping also to a process that opened the
//!    file for reading only (mmap(2)), so a file that is mapped privately is opened for
//!    writing only if the process has a descriptor that it can write with.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hikkoshi_linux::Process;
use rustix::fs::{Mode, OFlags};

use crate::process::maps::{self, Mapping};

/// The access to a RAM file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// At the source.
    Read,
    /// At the destination.
    Write,
}

/// A range of a file, and where a process has mapped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedFileRange {
    /// The file's device number.
    pub(crate) device: u64,
    /// The file's inode number.
    pub(crate) inode: u64,
    /// Where it begins in the file, in bytes.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) bytes: u64,
    /// Where it begins in the process's address space.
    pub(crate) address: u64,
}

impl MappedFileRange {
    /// The mapping that contains it, if it is writable and shared or not.
    fn mapping<'a>(&self, mappings: &'a [Mapping], shared: bool) -> Option<&'a Mapping> {
        mappings.iter().find(|mapping| {
            mapping.shared == shared
                && mapping.writable
                && (mapping.device, mapping.inode) == (self.device, self.inode)
                && mapping.address_of(self.offset, self.bytes) == Some(self.address)
        })
    }

    fn is_of(&self, metadata: &Metadata) -> bool {
        (metadata.dev(), metadata.ino()) == (self.device, self.inode)
    }
}

/// Opens the file of which `process` has mapped this range.
///
/// # Errors
///
/// `PermissionDenied` if the process has not mapped it there, shared and writable;
/// others as for `open(2)`.
pub(crate) fn mapped(
    process: &Process,
    range: &MappedFileRange,
    access: FileAccess,
) -> io::Result<File> {
    open_mapped(process, range, access, true)
}

/// Opens the file of which `process` has mapped this range privately. For reading only, if the
/// process itself cannot write it.
///
/// # Errors
///
/// `PermissionDenied` if the process has not mapped it there, privately and writable;
/// others as for `open(2)`.
pub(crate) fn mapped_privately(
    process: &Process,
    range: &MappedFileRange,
    access: FileAccess,
) -> io::Result<File> {
    let may_write = access == FileAccess::Write && has_writable(process, range)?;
    let access = match may_write {
        true => FileAccess::Write,
        false => FileAccess::Read,
    };
    open_mapped(process, range, access, false)
}

/// Whether one of the process's descriptors is the file, and open for writing.
fn has_writable(process: &Process, range: &MappedFileRange) -> io::Result<bool> {
    for number in process.descriptors()? {
        let path = format!("/proc/{}/fd/{number}", process.pid());
        // Most belong to other files, and some are closed by now.
        let Ok(pinned) = pin(Path::new(&path), OFlags::empty(), range) else {
            continue;
        };
        // The number can be another file's since: then it is pinned no more.
        let writable = process
            .describe_descriptor(number)
            .is_ok_and(|(_, info)| is_writable(&info));
        let same = pin(Path::new(&path), OFlags::empty(), range).is_ok();
        drop(pinned);
        if writable && same {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a descriptor with this `fdinfo` can be written to (proc_pid_fdinfo(5): `flags` is
/// octal).
fn is_writable(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    let flags = flags.map(OFlags::from_bits_retain);
    flags.is_some_and(|flags| {
        !flags.contains(OFlags::PATH) && flags.intersects(OFlags::WRONLY | OFlags::RDWR)
    })
}

fn open_mapped(
    process: &Process,
    range: &MappedFileRange,
    access: FileAccess,
    shared: bool,
) -> io::Result<File> {
    let mapping = first_mapping(process, range, shared)?;
    let entry = format!(
        "/proc/{}/map_files/{:x}-{:x}",
        process.pid(),
        mapping.start,
        mapping.first_end
    );
    let folder = PathBuf::from(format!("/proc/{}", process.pid()));
    // Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN (proc_pid_map_files(5)).
    let pinned = pin(Path::new(&entry), OFlags::empty(), range)
        .or_else(|error| pin_by_descriptor(&folder, range)?.ok_or(error))?;
    // While we hold the file, no other file can have its numbers.
    first_mapping(process, range, shared)?;
    reopen(&pinned, access)
}

/// Opens a file of a process that has ended, by its path.
///
/// # Errors
///
/// As for `open(2)`; `ELOOP` if the path ends in a symbolic link, `NotFound` if another
/// file is there.
pub(crate) fn at_path(
    path: &Path,
    range: &MappedFileRange,
    access: FileAccess,
) -> io::Result<File> {
    reopen(&pin(path, OFlags::NOFOLLOW, range)?, access)
}

fn first_mapping(process: &Process, range: &MappedFileRange, shared: bool) -> io::Result<Mapping> {
    let mappings = process.open_proc("maps").and_then(maps::read)?;
    range.mapping(&mappings, shared).cloned().ok_or_else(|| {
        let what = if shared {
            "QEMU does not map it there as shared and writable (any more)"
        } else {
            "QEMU does not map it there as private and writable (any more)"
        };
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    })
}

/// Opens a file that the process with this folder in `/proc` has open; `None` if it has not.
///
/// # Errors
///
/// As for `open(2)`.
pub(crate) fn by_descriptor(
    folder: &Path,
    range: &MappedFileRange,
    access: FileAccess,
) -> io::Result<Option<File>> {
    match pin_by_descriptor(folder, range) {
        Ok(Some(pinned)) => reopen(&pinned, access).map(Some),
        // It may not be examined, or has ended.
        Ok(None) | Err(_) => Ok(None),
    }
}

fn pin_by_descriptor(folder: &Path, range: &MappedFileRange) -> io::Result<Option<File>> {
    for entry in std::fs::read_dir(folder.join("fd"))? {
        // Most belong to other files, and some are closed by now.
        if let Ok(pinned) = pin(&entry?.path(), OFlags::empty(), range) {
            return Ok(Some(pinned));
        }
    }
    Ok(None)
}

/// Opens the file at `path` with `O_PATH`, if it is a regular file and the expected one.
fn pin(path: &Path, flags: OFlags, range: &MappedFileRange) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    let pinned = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = pinned.metadata()?;
    if metadata.is_symlink() {
        return Err(rustix::io::Errno::LOOP.into());
    }
    if !metadata.is_file() || !range.is_of(&metadata) {
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
