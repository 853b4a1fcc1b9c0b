//! The userfaultfd for missing pages.

use std::sync::Arc;

use hikkoshi_memory::PrivateMemory;
use hikkoshi_pages::PAGE_BYTES;
use hikkoshi_userfault::{Features, RemoteUserfault, Userfault};

use super::{QemuDestination, UserfaultError};
use crate::ram::file::FileSystem;
use crate::ram::huge_tmpfs;

impl QemuDestination {
    /// After reattaching in post-copy: checks that the userfaultfd of the previous engine
    /// still exists inside QEMU.
    ///
    /// # Errors
    ///
    /// [`UserfaultError::Lost`].
    pub fn check_userfault(&self) -> Result<(), UserfaultError> {
        if self.reattached && self.userfault.is_none() {
            return Err(UserfaultError::Lost {
                pid: self.process.pid(),
                number: self.reattach_info.get().userfault,
            });
        }
        Ok(())
    }

    pub(super) fn userfault(&mut self) -> Result<Arc<Userfault>, UserfaultError> {
        self.check_files()?;
        self.check_userfault()?;
        let taken = match self.userfault.take() {
            Some(taken) => taken,
            None => RemoteUserfault::create_in(&self.process, Features::FOR_MISSING)?,
        };
        let number = taken.remote();
        self.reattach_info
            .change(|info| info.userfault = Some(number));
        Ok(Arc::clone(self.userfault.insert(taken).userfault()))
    }

    /// A userfaultfd that only this process has open, for filling absent memory.
    pub(super) fn own_userfault(&self) -> Result<Arc<Userfault>, UserfaultError> {
        let created = RemoteUserfault::create_in(&self.process, Features::NONE)?;
        created.close_remote()?;
        Ok(Arc::clone(created.userfault()))
    }

    /// Checks that pages of the files can be dropped one by one, and fault then.
    pub(super) fn check_files(&self) -> Result<(), UserfaultError> {
        let ram = &self.ram;
        for ((block, _), backing) in ram.layout().blocks().zip(ram.backings()) {
            // A page that is absent from a private mapping is the file's.
            let private = backing.private().and_then(PrivateMemory::file);
            let Some(file) = backing.file().or(private) else {
                continue; // Anonymous: the process drops pages one by one.
            };
            let id = || block.id.clone();
            if block.host_page != PAGE_BYTES {
                continue; // hugetlbfs: pages of one size, all of them.
            }
            let (system, _) = FileSystem::of_file(file.as_fd())
                .map_err(|source| UserfaultError::FileSystem { id: id(), source })?;
            // In a file on a disk, the kernel itself fills absent pages.
            if matches!(system, FileSystem::Disk | FileSystem::Other) {
                return Err(UserfaultError::NeverFaults { id: id() });
            }
            let setting = huge_tmpfs::cause(&self.process, file.as_fd())
                .map_err(|source| UserfaultError::MountOptions { id: id(), source })?;
            if let Some(setting) = setting {
                return Err(UserfaultError::HugePages { id: id(), setting });
            }
        }
        Ok(())
    }
}
