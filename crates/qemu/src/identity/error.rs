//! Errors.

use std::io;
use std::path::PathBuf;

use hikkoshi_pages::LayoutError;
use hikkoshi_userfault::TakeError;
use thiserror::Error;

use super::namespaces::FindProcessError;
use crate::attach::exclusive_access::ExclusiveAccessError;
use crate::attach::process::ProcessError;

/// A guest whose migration was interrupted could not be found again.
#[derive(Debug, Error)]
pub enum ReattachError {
    /// The process.
    #[error("taking up QEMU's process: {0}")]
    Process(#[from] ProcessError),
    /// Whether it is there could not be found out.
    #[error(transparent)]
    Look(#[from] FindProcessError),
    /// The RAM file of a QEMU that lives.
    #[error("opening the file of the guest's memory \"{id}\", {}: {source}", path.display())]
    Open {
        /// The block.
        id: String,
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The RAM file of a QEMU that is gone.
    #[error(
        "QEMU's process {pid} has ended, and the file of its guest's memory \"{id}\", {}, is gone \
         with it ({source}), seen from here. If that QEMU had a mount namespace of its own (a \
         container's), look there for the file before anything is given up; otherwise nothing of \
         the guest is left", path.display()
    )]
    NothingLeft {
        /// QEMU's process.
        pid: u32,
        /// The block.
        id: String,
        /// Its file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record makes no sense.
    #[error("the record of the guest's memory is damaged: {0}")]
    Layout(#[from] LayoutError),
    /// The record makes no sense.
    #[error("the record of the guest's memory is damaged: {blocks} blocks, {files} files")]
    Files {
        /// Blocks in it.
        blocks: usize,
        /// Files in it.
        files: usize,
    },
    /// Another engine is at work on it.
    #[error("taking up a migration: {0}")]
    Occupied(#[from] ExclusiveAccessError),
    /// Somebody else has the RAM file of a QEMU that is gone.
    #[error(
        "QEMU's process {pid} has ended, but process {user} ({name}) has the file of its guest's \
         memory \"{id}\", {}, mapped and may have overwritten it: the pages that the destination \
         lacks are not sent from there. If that process is a QEMU that was started on the same file \
         since, it has a guest of its own, and the pages are lost: leave it alone", path.display()
    )]
    Reused {
        /// QEMU's process.
        pid: u32,
        /// The other one.
        user: u32,
        /// Its name.
        name: String,
        /// The block.
        id: String,
        /// Its file.
        path: PathBuf,
    },
    /// Whether somebody has it could not be found out.
    #[error(
        "QEMU's process {pid} has ended; looking whether another one uses the file of its guest's \
         memory \"{id}\" since: {source}; try again"
    )]
    Users {
        /// QEMU's process.
        pid: u32,
        /// The block.
        id: String,
        /// What the system said.
        source: io::Error,
    },
    /// The userfaultfd.
    #[error("taking over what the engine before left in QEMU: {0}")]
    Userfault(#[from] TakeError),
}

/// Something that only a QEMU can do.
#[derive(Debug, Error)]
#[error("{doing}: QEMU (process {pid}) has ended")]
pub struct QemuExitedError {
    pub(crate) doing: &'static str,
    pub(crate) pid: u32,
}
