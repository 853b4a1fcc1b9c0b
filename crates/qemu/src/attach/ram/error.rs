//! Why the guest's memory cannot be moved.

use std::io;

use hikkoshi_pages::LayoutError;
use thiserror::Error;

use super::free_space::FreeSpaceError;
use crate::attach::process::ProcessError;
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
    /// QEMU has no memory backends.
    #[error("looking for the guest's memory: this QEMU has no memory backends{ADVICE}")]
    None,
    /// The backend is not a file.
    #[error(
        "the guest's memory \"{id}\" is a {kind}, not a named file, so no other process can access \
         it{ADVICE}"
    )]
    NotAFile {
        /// The backend.
        id: String,
        /// Its type.
        kind: String,
    },
    /// The backend is not shared.
    #[error(
        "the guest's memory \"{id}\" is not shared (share=off): the guest's writes do not \
         reach its file {path}{ADVICE}"
    )]
    NotShared {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
    },
    /// The backend is read-only.
    #[error("the guest's memory \"{id}\" is read-only; read-only backends are not supported yet")]
    ReadOnly {
        /// The backend.
        id: String,
    },
    /// The process does not map the file.
    #[error(
        "the guest's memory \"{id}\" ({path}) is not mapped by process {pid} ({name}), which opened \
         the QMP socket: if another program opened that socket for QEMU, give QEMU a -qmp socket \
         that it opens itself"
    )]
    NotMapped {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// The process behind the QMP socket.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The process maps the file read-only.
    #[error(
        "the guest's memory \"{id}\" ({path}) is mapped read-only by process {pid}, although \
         QMP reports it as writable: QEMU does not map a guest's memory like this, and \
         hikkoshi does not open a file that the process itself may not write"
    )]
    NotWritable {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// The process behind the QMP socket.
        pid: u32,
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
    /// Two backends are the same bytes.
    #[error(
        "the guest's memory \"{first}\" and \"{second}\" is the same part of the same file; give \
         each backend its own file"
    )]
    SharedFile {
        /// One backend.
        first: String,
        /// The other.
        second: String,
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
    /// The file system is neither tmpfs nor hugetlbfs.
    #[error(
        "the guest's memory \"{id}\" ({path}) is neither on tmpfs nor on hugetlbfs. Page faults can \
         be handled and writes tracked only there: put it in /dev/shm or on a hugetlbfs mount"
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
    /// The backend is not part of the guest's memory.
    #[error(
        "the memory backend \"{id}\" is not part of the guest's memory; remove it (QMP command \
         'object-del') or plug it in first"
    )]
    NotInGuest {
        /// The backend.
        id: String,
    },
    /// QEMU's memory tree could not be parsed.
    #[error(
        "the guest addresses of the memory \"{id}\" cannot be read from QEMU's \"info mtree\": \
         {pieces}; report this as a bug, with the output of that command"
    )]
    Addresses {
        /// The backend.
        id: String,
        /// What was parsed.
        pieces: String,
    },
    /// The guest has memory outside the backends.
    #[error(
        "the guest has {guest} bytes of memory, but its backends have only {backends}; the rest \
         cannot be moved{ADVICE}"
    )]
    Incomplete {
        /// Bytes of the machine.
        guest: u64,
        /// Bytes of the backends.
        backends: u64,
    },
    /// The layout is not supported.
    #[error("the guest's memory cannot be moved")]
    Layout(#[from] LayoutError),
    /// There is not enough free space for it.
    #[error(transparent)]
    FreeSpace(#[from] FreeSpaceError),
}

/// How to start QEMU.
const ADVICE: &str = "; start QEMU with -object memory-backend-file,id=ram,size=SIZE,\
    mem-path=/dev/shm/NAME,share=on -machine …,memory-backend=ram";
