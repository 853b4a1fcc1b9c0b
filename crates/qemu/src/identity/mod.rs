//! What identifies a QEMU process and its guest's memory.
//!
//! It is recorded, so that another program finds both again without QEMU's help:
//! QEMU may be unable to answer (its main loop waits for a page), or have ended.

mod error;
pub(crate) mod namespaces;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_memory::{Backing, GuestRam, RamFile};
use hikkoshi_wire::GuestDescription;
use serde::{Deserialize, Serialize};

pub(crate) use self::error::QemuExitedError;
pub use self::error::ReattachError;
use self::namespaces::{FindProcessError, NamespaceIdentity};
use crate::attach::Attached;
use crate::attach::exclusive_access;
use crate::attach::process::{self, ProcessError};
use crate::attach::reopen::{self, FileAccess, MappedFileRange};

/// A QEMU process and its guest's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QemuIdentity {
    /// Its QMP socket.
    pub qmp: PathBuf,
    /// Its process.
    pub pid: u32,
    /// When it was started, in ticks since boot. Another process can have the same
    /// number later.
    #[serde(rename = "started")]
    pub start_time: u64,
    /// The boot and the namespaces in which these numbers name that process.
    #[serde(rename = "view")]
    pub namespaces: NamespaceIdentity,
    /// The machine.
    pub description: GuestDescription,
    /// The RAM blocks' files, in the order of the description's blocks.
    pub memory: Vec<RamFileIdentity>,
}

/// What identifies the file of a RAM block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamFileIdentity {
    /// Its file's path as we see it. For a removed file, the name that the kernel
    /// reports.
    pub path: PathBuf,
    /// The file system's device number.
    pub device: u64,
    /// The file's inode number.
    pub inode: u64,
    /// Where the block begins in the file, in bytes.
    pub offset: u64,
    /// Where the block begins in QEMU's address space.
    pub address: u64,
}

impl QemuIdentity {
    /// The identity of a QEMU that we are attached to.
    pub(crate) fn of(qmp: &Path, qemu: &Attached) -> Result<Self, ProcessError> {
        let memory = qemu
            .ram
            .backings()
            .iter()
            .filter_map(Backing::file)
            .zip(&qemu.addresses)
            .map(|(file, &address)| RamFileIdentity::of(file, address))
            .collect::<io::Result<_>>()
            .map_err(|source| {
                process::explain(
                    &qemu.process,
                    "reading the metadata of the RAM files",
                    source,
                )
            })?;
        Ok(Self {
            qmp: std::path::absolute(qmp).unwrap_or_else(|_| qmp.to_owned()),
            pid: qemu.process.pid(),
            start_time: process::start_time(&qemu.process)?,
            namespaces: NamespaceIdentity::current().map_err(|source| ProcessError::Proc {
                pid: qemu.process.pid(),
                doing: "reading our own boot and namespaces",
                source,
            })?,
            description: qemu.description.clone(),
            memory,
        })
    }

    /// Opens the process; `None` if it has ended for certain.
    ///
    /// # Errors
    ///
    /// See [`FindProcessError`]: it is not known whether the process still exists.
    pub fn process(&self) -> Result<Option<Arc<Process>>, FindProcessError> {
        self.namespaces.check(self.pid)?;
        let Some(process) = process::open(self.pid)? else {
            return Ok(None);
        };
        // Another process may have this number now.
        let start_time = match process::start_time(&process) {
            Err(ProcessError::Gone { .. }) => return Ok(None),
            start_time => start_time?,
        };
        Ok((start_time == self.start_time && process.is_alive()).then_some(process))
    }

    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.memory.iter().map(|memory| memory.address).collect()
    }

    /// Opens the same files again.
    pub(crate) fn open_ram_files(
        &self,
        process: Option<&Process>,
        access: FileAccess,
    ) -> Result<GuestRam, ReattachError> {
        let layout = self.description.layout()?;
        let files = self
            .description
            .blocks
            .iter()
            .zip(&self.memory)
            .map(|(block, memory)| {
                let file = memory
                    .open(block.bytes, process, access)
                    .map_err(|source| {
                        let (id, path) = (block.id.clone(), memory.path.clone());
                        match process {
                            Some(_) => ReattachError::Open { id, path, source },
                            None => ReattachError::NothingLeft {
                                pid: self.pid,
                                id,
                                path,
                                source,
                            },
                        }
                    })?;
                Ok(RamFile::new(file, memory.offset))
            })
            .collect::<Result<Vec<_>, ReattachError>>()?;
        let counted = ReattachError::Files {
            blocks: self.description.blocks.len(),
            files: files.len(),
        };
        GuestRam::new(layout, files).ok_or(counted)
    }

    /// Checks that no process has the files mapped. QEMU has ended, and a process
    /// that maps them now may have overwritten them.
    pub(crate) fn check_unused(&self) -> Result<(), ReattachError> {
        for (block, memory) in self.description.blocks.iter().zip(&self.memory) {
            let (pid, id) = (self.pid, block.id.clone());
            match exclusive_access::find_user(memory.device, memory.inode) {
                Ok(None) => {}
                Ok(Some((user, name))) => {
                    return Err(ReattachError::Reused {
                        pid,
                        user,
                        name,
                        id,
                        path: memory.path.clone(),
                    });
                }
                Err(source) => return Err(ReattachError::Users { pid, id, source }),
            }
        }
        Ok(())
    }
}

impl RamFileIdentity {
    fn of(file: &RamFile, address: u64) -> io::Result<Self> {
        let metadata = file.file().metadata()?;
        let number = file.file().as_raw_fd();
        Ok(Self {
            path: std::fs::read_link(format!("/proc/self/fd/{number}"))?,
            device: metadata.dev(),
            inode: metadata.ino(),
            offset: file.offset(),
            address,
        })
    }

    /// Opens the file, for `bytes` bytes of it: through the process's mapping, or by
    /// its path if the process has ended.
    pub(crate) fn open(
        &self,
        bytes: u64,
        process: Option<&Process>,
        access: FileAccess,
    ) -> io::Result<File> {
        let range = MappedFileRange {
            device: self.device,
            inode: self.inode,
            offset: self.offset,
            bytes,
            address: self.address,
        };
        match process {
            Some(process) => reopen::mapped(process, &range, access),
            None => reopen::at_path(&self.path, &range, access),
        }
    }
}
