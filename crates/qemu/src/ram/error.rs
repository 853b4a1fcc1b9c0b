//! Why the guest's memory cannot be moved.

use std::io;

use hikkoshi_pages::LayoutError;
use thiserror::Error;

use super::not_enough_memory::NotEnoughMemory;
use crate::process::ProcessError;
use crate::qmp::QmpError;

/// The guest's memory was not found, or cannot be moved.
#[derive(Debug, Error)]
pub enum RamError {
    /// A QMP command failed.
    #[error("looking for the guest's memory")]
    Qmp(#[from] QmpError),
    /// QEMU's process cannot be used.
    #[error("looking for the guest's memory")]
    Process(#[from] ProcessError),
    /// QEMU has no RAM blocks.
    #[error("looking for the guest's memory: this QEMU has no RAM blocks")]
    None,
    /// QEMU may not write it.
    #[error(
        "the guest's memory \"{id}\" is a read-only mapping of a file (readonly=on): what a \
         destination has there cannot be replaced (unplug it, or use a backend without readonly=on)"
    )]
    ReadOnly {
        /// The block.
        id: String,
    },
    /// The process does not have memory at the block's address.
    #[error(
        "the guest's memory \"{id}\" is not mapped by process {pid} ({name}), which opened \
         the QMP socket (if another program opened that socket for QEMU, give QEMU a -qmp socket \
         that it opens itself)"
    )]
    NotMapped {
        /// The block.
        id: String,
        /// The process behind the QMP socket.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// No address was found.
    #[error(
        "where the RAM block \"{id}\" is in QEMU's memory is not known: no area of the process has \
         its length and a guard page (QEMU prints the address from version 8.0 on)"
    )]
    AddressUnknown {
        /// The block.
        id: String,
    },
    /// Several addresses are possible.
    #[error(
        "where the RAM block \"{id}\" is in QEMU's memory is not known: {areas} areas of the process \
         can be it, and {blocks} RAM blocks have this length (QEMU prints the address from version \
         8.0 on)"
    )]
    AddressAmbiguous {
        /// The block.
        id: String,
        /// How many areas have its length and are not another block.
        areas: usize,
        /// How many blocks without an address have its length.
        blocks: usize,
    },
    /// Two blocks have the same memory.
    #[error(
        "the RAM blocks \"{first}\" and \"{second}\" are at the same address of QEMU's process"
    )]
    Overlap {
        /// One block.
        first: String,
        /// The other.
        second: String,
    },
    /// A block consists of different mappings.
    #[error(
        "the RAM block \"{id}\" consists of mappings of different kinds in QEMU's process, which \
         QEMU does not make"
    )]
    Mixed {
        /// The block.
        id: String,
    },
    /// The page size is not that of the file.
    #[error(
        "QEMU reports pages of {block} bytes for the guest's memory \"{id}\", but its file {path} has \
         pages of {file} bytes"
    )]
    PageSize {
        /// The block.
        id: String,
        /// Its file.
        path: String,
        /// Bytes of the file's pages.
        file: u64,
        /// Bytes of the block's pages.
        block: u64,
    },
    /// The process's memory cannot be opened.
    #[error(
        "opening the memory of QEMU's process {pid} for the RAM block \"{id}\" (run hikkoshi as root, \
         or give it the capability CAP_SYS_PTRACE)"
    )]
    OpenMemory {
        /// The block.
        id: String,
        /// QEMU's process.
        pid: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// The process maps the file more than once.
    #[error("the guest's memory \"{id}\" ({path}) is mapped {mappings} times by QEMU, not once")]
    Ambiguous {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// How many times.
        mappings: usize,
    },
    /// The file cannot be opened.
    #[error(
        "opening the file of the guest's memory \"{id}\", {path} (run \
         hikkoshi as root, or as a user that may read and write it)"
    )]
    Open {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file system is not known.
    #[error(
        "the guest's memory \"{id}\" is the shared file {path}, which is not on tmpfs, hugetlbfs, \
         ext4 or XFS (without DAX). On other file systems, it is not known that the writes of the \
         guest are tracked, and that a read of the file returns what the guest has written (put it on \
         one of these, or use share=off or another kind of memory)"
    )]
    FileSystem {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
    },
    /// The file is too short.
    #[error(
        "the file of the guest's memory \"{id}\", {path}, has {bytes} bytes, but {needed} are needed: it has been truncated"
    )]
    Short {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// Its length.
        bytes: u64,
        /// The length that is needed.
        needed: u64,
    },
    /// QEMU's memory tree could not be parsed.
    #[error(
        "the guest addresses of the memory \"{id}\" cannot be read from QEMU's \"info mtree\": \
         {flat_ranges}; report this as a bug, with the output of that command"
    )]
    Addresses {
        /// The backend.
        id: String,
        /// What was parsed.
        flat_ranges: String,
    },
    /// The guest has memory outside the backends.
    #[error(
        "the guest has {guest} bytes of memory, but its memory backends only {found}; report this as \
         a bug, with the output of QEMU's \"info ramblock\" and \"info mtree -f -o\""
    )]
    Incomplete {
        /// Bytes of the machine.
        guest: u64,
        /// Bytes of the blocks that were found.
        found: u64,
    },
    /// Another process has the destination's memory mapped.
    #[error(
        "the file of the guest's memory \"{id}\", {path}, is also mapped by process {user} ({name}): \
         a destination empties its memory, which would destroy that of the other process (give \
         the destination a file of its own)"
    )]
    InUse {
        /// The block.
        id: String,
        /// Its file.
        path: String,
        /// The other process.
        user: u32,
        /// Its name.
        name: String,
    },
    /// The layout is not supported.
    #[error("the guest's memory cannot be moved")]
    Layout(#[from] LayoutError),
    /// There is not enough free space for it.
    #[error(transparent)]
    NotEnoughMemory(#[from] NotEnoughMemory),
}

/// Several reasons, at least one.
#[derive(Debug)]
pub(crate) struct RamErrors(pub(crate) Vec<RamError>);

impl<E: Into<RamError>> From<E> for RamErrors {
    fn from(error: E) -> Self {
        Self(vec![error.into()])
    }
}
