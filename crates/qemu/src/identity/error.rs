//! Errors of reattaching to the QEMU of an interrupted migration.

use std::io;
use std::path::PathBuf;

use hikkoshi_pages::LayoutError;
use hikkoshi_userfault::RemoteUserfaultError;
use thiserror::Error;

use crate::process::ProcessError;
use crate::process::exclusive_access::ExclusiveAccessError;
use crate::process::namespaces::FindProcessError;

/// The guest of an interrupted migration, or its memory, was not found.
#[derive(Debug, Error)]
pub enum ReattachError {
    /// QEMU's process cannot be used.
    #[error("reattaching to QEMU's process")]
    Process(#[from] ProcessError),
    /// It is not known whether the process still exists.
    #[error(transparent)]
    Look(#[from] FindProcessError),
    /// The RAM file of a running QEMU cannot be opened.
    #[error("opening the file of the guest's memory \"{id}\", {}", path.display())]
    Open {
        /// The block.
        id: String,
        /// Its file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The private memory of a running QEMU cannot be opened.
    #[error("opening the guest's memory \"{id}\" in QEMU's process {pid}")]
    OpenPrivate {
        /// QEMU's process.
        pid: u32,
        /// The block.
        id: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The RAM file of a QEMU that has ended is gone, too.
    #[error(
        "QEMU's process {pid} has ended, and the file of its guest's memory \"{id}\", {}, cannot be \
         opened from here. If that QEMU had its own mount namespace (a container), look \
         for the file there before you give up the migration; otherwise the guest is lost",
        path.display()
    )]
    NothingLeft {
        /// QEMU's process.
        pid: u32,
        /// The block.
        id: String,
        /// Its file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The recorded layout is invalid.
    #[error("the record of the guest's memory is damaged")]
    Layout(#[from] LayoutError),
    /// The record has not one file for each block.
    #[error("the record of the guest's memory is damaged: {blocks} blocks, {files} files")]
    Files {
        /// Blocks in it.
        blocks: usize,
        /// Files in it.
        files: usize,
    },
    /// Another hikkoshi process has this guest.
    #[error("resuming a migration")]
    Occupied(#[from] ExclusiveAccessError),
    /// Another process uses the RAM file of a QEMU that has ended.
    #[error(
        "QEMU's process {pid} has ended, but process {user} ({name}) has the file of its guest's \
         memory \"{id}\", {}, mapped and may have overwritten it: the pages that the destination \
         still needs are not sent from there. If that process is another QEMU that was started \
         with the same file, it runs a guest of its own, and the pages are lost: leave it alone",
        path.display()
    )]
    Reused {
        /// QEMU's process.
        pid: u32,
        /// The other process.
        user: u32,
        /// Its name.
        name: String,
        /// The block.
        id: String,
        /// Its file.
        path: PathBuf,
    },
    /// Finding processes that use the RAM file failed.
    #[error(
        "QEMU's process {pid} has ended; checking whether another process uses the file of its \
         guest's memory \"{id}\" (try again)"
    )]
    Users {
        /// QEMU's process.
        pid: u32,
        /// The block.
        id: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The userfaultfd inside QEMU cannot be used.
    #[error("taking over the userfaultfd of the interrupted migration in QEMU")]
    Userfault(#[from] RemoteUserfaultError),
}

/// An operation needs QEMU, which has ended.
#[derive(Debug, Error)]
#[error("{doing}: QEMU (process {pid}) has ended")]
pub(crate) struct QemuExitedError {
    pub(crate) doing: &'static str,
    pub(crate) pid: u32,
}
