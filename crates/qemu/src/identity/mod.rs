//! What identifies a QEMU process and its guest's memory.
//!
//! It is recorded, so that another program finds both again without QEMU's help:
//! QEMU may be unable to answer (its main loop waits for a page), or have ended.

mod error;
mod guard_files;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use hikkoshi_linux::Process;
use hikkoshi_memory::{Backing, GuestRam, MemoryLost, PrivateMemory, RamFile};
use hikkoshi_wire::{GuestDescription, Machine, Processors};
use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};

pub(crate) use self::error::QemuExitedError;
pub use self::error::ReattachError;
pub use self::guard_files::HOLD;
use crate::attach::Attached;
use crate::process::exclusive_access::{self, ExclusiveAccess};
use crate::process::namespaces::{FindProcessError, NamespaceIdentity};
use crate::process::reopen::{self, FileAccess, MappedFileRange};
use crate::process::{self, ProcessError};
use crate::qmp::{Monitor, MonitorAddress};

/// A QEMU process and its guest's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QemuIdentity {
    /// Its monitor.
    pub monitor: MonitorAddress,
    /// How the guest's owner calls it (`-name` of QEMU), if that is known. A domain has its name in
    /// `monitor`.
    pub name: Option<String>,
    /// Its process.
    pub pid: u32,
    /// When it was started, in ticks since boot. Another process can have the same
    /// number later.
    pub start_time: u64,
    /// The boot and the namespaces in which these numbers name that process.
    pub namespaces: NamespaceIdentity,
    /// The machine.
    pub description: GuestDescription,
    /// What holds the RAM blocks, in the order of the description's blocks.
    pub memory: Vec<RamIdentity>,
}

/// What identifies the memory of a RAM block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum RamIdentity {
    /// A file that QEMU has mapped shared. It remains when QEMU ends.
    File(RamFileIdentity),
    /// Private memory of QEMU's process. It is lost when QEMU ends.
    Private {
        /// Where the block begins in QEMU's address space.
        address: u64,
        /// The file of a private mapping, which has the pages that QEMU has not written.
        file: Option<RamFileIdentity>,
        /// At the source: whether the destination has all of it.
        sent: bool,
    },
}

/// What identifies the file of a RAM block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    pub(crate) fn of_attached(
        monitor: &dyn Monitor,
        qemu: &Attached,
    ) -> Result<Self, ProcessError> {
        let memory = identify(&qemu.ram, &qemu.addresses).map_err(|source| {
            process::explain(
                &qemu.process,
                "reading the metadata of the RAM files",
                source,
            )
        })?;
        Ok(Self {
            monitor: monitor.address().absolute(),
            name: qemu.name.clone(),
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

    /// This QEMU, for another engine; no session is opened. Its processors and devices were
    /// compared before the guest was moved.
    pub(crate) fn reattached(
        &self,
        process: Arc<Process>,
        ram: GuestRam,
        lock: ExclusiveAccess,
    ) -> Attached {
        Attached {
            client: None,
            process,
            ram: Arc::new(ram),
            addresses: self.addresses(),
            description: self.description.clone(),
            name: self.name.clone(),
            processors: Processors::default(),
            lock,
            machine: Machine::default(),
            drains: false,
        }
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

    /// Notes which private memory the destination has; `ram` is the source's.
    pub fn note_sent(&mut self, ram: &GuestRam) {
        for (memory, backing) in self.memory.iter_mut().zip(ram.backings()) {
            if let (RamIdentity::Private { sent, .. }, Backing::Private(memory)) = (memory, backing)
            {
                *sent = memory.is_sent();
            }
        }
    }

    pub(crate) fn addresses(&self) -> Vec<u64> {
        self.memory.iter().map(RamIdentity::address).collect()
    }

    /// Opens the same memory again. `None` for a process that has ended: then only the
    /// shared files remain, and other blocks are [lost](Backing::Lost).
    pub(crate) fn open_ram(
        &self,
        process: Option<&Arc<Process>>,
        access: FileAccess,
    ) -> Result<GuestRam, ReattachError> {
        let layout = self.description.layout()?;
        let mut backings = Vec::with_capacity(self.memory.len());
        for (block, memory) in self.description.blocks.iter().zip(&self.memory) {
            let id = block.id.clone();
            let backing = memory.open(block.bytes, process, access);
            let backing = backing.map_err(|source| match (process, memory) {
                (None, RamIdentity::File(file)) => ReattachError::NothingLeft {
                    pid: self.pid,
                    id,
                    path: file.path.clone(),
                    source,
                },
                (_, RamIdentity::File(file))
                | (
                    _,
                    RamIdentity::Private {
                        file: Some(file), ..
                    },
                ) => ReattachError::Open {
                    id,
                    path: file.path.clone(),
                    source,
                },
                (_, RamIdentity::Private { .. }) => ReattachError::OpenPrivate {
                    pid: self.pid,
                    id,
                    source,
                },
            })?;
            backings.push(backing);
        }
        let counted = ReattachError::Files {
            blocks: self.description.blocks.len(),
            files: backings.len(),
        };
        GuestRam::new(layout, backings).ok_or(counted)
    }

    /// The numbers of those files among the backings of `ram`, as they are open here, that cannot
    /// be opened by a path from here: they exist as long as a process has them open.
    pub fn nameless_files(&self, ram: &GuestRam) -> Vec<RawFd> {
        let blocks = self.description.blocks.iter();
        let memory = blocks.zip(&self.memory).zip(ram.backings());
        memory
            .filter_map(|((block, memory), backing)| {
                let (RamIdentity::File(file), Backing::File(open)) = (memory, backing) else {
                    return None;
                };
                let range = file.range(block.bytes);
                let named = reopen::at_path(&file.path, &range, FileAccess::Read).is_ok();
                (!named).then(|| open.file().as_raw_fd())
            })
            .collect()
    }

    /// Checks that no process has the files mapped. QEMU has ended, and a process
    /// that maps them now may have overwritten them.
    pub(crate) fn check_unused(&self) -> Result<(), ReattachError> {
        for (block, memory) in self.description.blocks.iter().zip(&self.memory) {
            let RamIdentity::File(memory) = memory else {
                continue;
            };
            let (pid, id) = (self.pid, block.id.clone());
            match exclusive_access::find_user(memory.device, memory.inode, None) {
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

fn identify(ram: &GuestRam, addresses: &[u64]) -> io::Result<Vec<RamIdentity>> {
    let memory = ram.backings().iter().zip(addresses);
    memory
        .map(|(backing, &address)| RamIdentity::of_backing(backing, address))
        .collect()
}

impl RamIdentity {
    fn of_backing(backing: &Backing, address: u64) -> io::Result<Self> {
        Ok(match backing {
            Backing::Lost => return Err(MemoryLost.into()),
            Backing::File(file) => Self::File(RamFileIdentity::of_file(file, address)?),
            Backing::Private(memory) => Self::Private {
                address,
                file: match memory.file() {
                    Some(file) => Some(RamFileIdentity::of_file(file, address)?),
                    None => None,
                },
                sent: memory.is_sent(),
            },
        })
    }

    /// Where the block begins in QEMU's address space.
    pub fn address(&self) -> u64 {
        match self {
            Self::File(file) => file.address,
            Self::Private { address, .. } => *address,
        }
    }

    /// Opens `bytes` bytes of memory.
    fn open(
        &self,
        bytes: u64,
        process: Option<&Arc<Process>>,
        access: FileAccess,
    ) -> io::Result<Backing> {
        let (address, file, sent) = match (self, process) {
            (Self::File(file), _) => {
                let opened = file.open(bytes, process.map(Arc::as_ref), access)?;
                return Ok(RamFile::new(opened, file.offset).into());
            }
            (Self::Private { sent: true, .. }, None) => return sent_before(bytes),
            (Self::Private { .. }, None) => return Ok(Backing::Lost),
            (
                Self::Private {
                    address,
                    file,
                    sent,
                },
                Some(_),
            ) => (*address, file, *sent),
        };
        let Some(process) = process else {
            return Ok(Backing::Lost);
        };
        let writable = access == FileAccess::Write;
        let memory = PrivateMemory::open(Arc::clone(process), address, bytes, writable)?;
        if sent {
            memory.set_sent();
        }
        Ok(match file {
            None => memory.into(),
            Some(file) => {
                let opened = reopen::mapped_privately(process, &file.range(bytes), access)?;
                memory.over_file(RamFile::new(opened, file.offset)).into()
            }
        })
    }
}

/// Memory that is gone, and that the destination has: no page of it is sent again.
fn sent_before(bytes: u64) -> io::Result<Backing> {
    let empty = rustix::fs::memfd_create("sent", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&empty, bytes)?;
    Ok(RamFile::new(empty.into(), 0).into())
}

impl RamFileIdentity {
    fn range(&self, bytes: u64) -> MappedFileRange {
        MappedFileRange {
            device: self.device,
            inode: self.inode,
            offset: self.offset,
            bytes,
            address: self.address,
        }
    }

    fn of_file(file: &RamFile, address: u64) -> io::Result<Self> {
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

    /// Opens the file, for `bytes` bytes of it: through the process's mapping, or if the
    /// process has ended by its path, or from a guard that holds it.
    pub(crate) fn open(
        &self,
        bytes: u64,
        process: Option<&Process>,
        access: FileAccess,
    ) -> io::Result<File> {
        let range = self.range(bytes);
        match process {
            Some(process) => reopen::mapped(process, &range, access),
            None => reopen::at_path(&self.path, &range, access).or_else(|error| {
                // A file without a name, which a guard holds.
                guard_files::open(&range, access)?.ok_or(error)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_pages::{PAGE_SIZE, PageRange, RamBlock, RamLayout};

    fn ram(memory: Backing) -> GuestRam {
        let block = RamBlock::new("ram", 4096, 4096);
        GuestRam::new(RamLayout::new(vec![block]).unwrap(), vec![memory]).unwrap()
    }

    #[test]
    fn private_memory_is_opened_again_in_its_process_and_is_lost_with_it() {
        let content = vec![7u8; 2 * PAGE_SIZE];
        let address = (content.as_ptr() as u64).next_multiple_of(4096);
        let identity = RamIdentity::Private {
            address,
            file: None,
            sent: false,
        };
        let own = Arc::new(Process::open(std::process::id()).unwrap());
        let mut page = [0; PAGE_SIZE];
        let opened = ram(identity.open(4096, Some(&own), FileAccess::Read).unwrap());
        let first = PageRange::new(hikkoshi_pages::Page::new(0), hikkoshi_pages::Page::new(1));
        opened.read(first, &mut page).unwrap();
        assert!(page == [7; PAGE_SIZE]);
        let gone = ram(identity.open(4096, None, FileAccess::Read).unwrap());
        assert!(MemoryLost::is_in(&gone.read(first, &mut page).unwrap_err()));
        assert!(MemoryLost::is_in(&gone.has_data(first).unwrap_err()));
        assert_eq!(gone.lost_blocks(), ["ram"]);
        // Nothing is missed if the destination has it.
        let sent = RamIdentity::Private {
            address,
            file: None,
            sent: true,
        };
        for process in [Some(&own), None] {
            let opened = ram(sent.open(4096, process, FileAccess::Read).unwrap());
            assert!(!opened.has_data(first).unwrap());
        }
        drop(content);
    }
}
