//! Errors.

use std::io;

use hikkoshi_pages::LayoutError;
use thiserror::Error;

use super::free_space::FreeSpaceError;
use crate::attach::process::ProcessError;
use crate::qmp::QmpError;

/// The guest's memory cannot be moved, or could not be found.
#[derive(Debug, Error)]
pub enum RamError {
    /// QEMU could not be asked.
    #[error("looking for the guest's memory: {0}")]
    Qmp(#[from] QmpError),
    /// The process could not be looked into.
    #[error("looking for the guest's memory: {0}")]
    Process(#[from] ProcessError),
    /// There are no backends.
    #[error("looking for the guest's memory: this QEMU has no memory backends{ADVICE}")]
    None,
    /// Not a file.
    #[error(
        "the guest's memory \"{id}\" is a {kind}, not a named file, so no other process can get at \
         it{ADVICE}"
    )]
    NotAFile {
        /// The backend.
        id: String,
        /// Its type.
        kind: String,
    },
    /// Not shared.
    #[error(
        "the guest's memory \"{id}\" is not shared (share=off): what the guest writes does not \
         reach its file {path}{ADVICE}"
    )]
    NotShared {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
    },
    /// Read-only.
    #[error("the guest's memory \"{id}\" is read-only; such backends cannot be moved yet")]
    ReadOnly {
        /// The backend.
        id: String,
    },
    /// In no process's memory.
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
    /// Mapped for reading only.
    #[error(
        "the guest's memory \"{id}\" ({path}) is mapped by process {pid} for reading only, though \
         it says that the guest can write there: this is not how QEMU maps a guest's memory, and \
         no file is opened for a process that may not write to it itself"
    )]
    NotWritable {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// The process behind the QMP socket.
        pid: u32,
    },
    /// In it more than once.
    #[error("the guest's memory \"{id}\" ({path}) is mapped {mappings} times by QEMU, not once")]
    Ambiguous {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// How many times.
        mappings: usize,
    },
    /// The same bytes twice.
    #[error(
        "the guest's memory \"{first}\" and \"{second}\" is the same part of the same file; give \
         each backend a file of its own"
    )]
    SharedFile {
        /// One backend.
        first: String,
        /// The other.
        second: String,
    },
    /// The file cannot be opened.
    #[error(
        "opening the file of the guest's memory \"{id}\", {path}: {source}; run as root, or as a user that may read and write it"
    )]
    Open {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file system is of the wrong kind.
    #[error(
        "the guest's memory \"{id}\" ({path}) is neither on tmpfs nor on hugetlbfs; page faults can \
         be caught and writes be tracked only there: put it in /dev/shm or on a hugetlbfs mount"
    )]
    FileSystem {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
    },
    /// The file ends too early.
    #[error(
        "the file of the guest's memory \"{id}\", {path}, has {bytes} bytes, but {needed} are needed: somebody cut it"
    )]
    Short {
        /// The backend.
        id: String,
        /// Its file.
        path: String,
        /// Its length.
        bytes: u64,
        /// What it should be.
        needed: u64,
    },
    /// The guest does not see it.
    #[error(
        "the memory backend \"{id}\" is not part of the guest's memory; remove it (QMP object-del), \
         or plug it in, first"
    )]
    NotInGuest {
        /// The backend.
        id: String,
    },
    /// What QEMU says about the guest's addresses cannot be understood.
    #[error(
        "where the guest sees its memory \"{id}\" cannot be understood from QEMU's \"info mtree\": \
         {pieces}; please report this with the output of that command"
    )]
    Addresses {
        /// The backend.
        id: String,
        /// What was found.
        pieces: String,
    },
    /// The guest has memory beside the backends.
    #[error(
        "the guest has {guest} bytes of memory, but its backends only {backends}; the rest could \
         not be moved{ADVICE}"
    )]
    Incomplete {
        /// What the machine has.
        guest: u64,
        /// What the backends have.
        backends: u64,
    },
    /// The layout breaks a rule of ours.
    #[error("the guest's memory cannot be moved: {0}")]
    Layout(#[from] LayoutError),
    /// There is no room for it.
    #[error(transparent)]
    Room(#[from] FreeSpaceError),
}

/// How QEMU must be started.
const ADVICE: &str = "; start QEMU with -object memory-backend-file,id=ram,size=SIZE,\
    mem-path=/dev/shm/NAME,share=on -machine …,memory-backend=ram";
