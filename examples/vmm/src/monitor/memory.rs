//! The guest's memory: a memfd, mapped in this process, and given to KVM as one slot.

use std::fs::File;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::Result;

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    map: GuestMemoryMmap,
    file: Arc<File>,
    host_address: u64,
}

impl Memory {
    /// 64 MiB, from guest address 0 on.
    pub(crate) const BYTES: u64 = 64 << 20;

    /// Memory that was never touched.
    pub(crate) fn new() -> Result<Self> {
        let file = Arc::new(File::from(memfd_create("ram", MemfdFlags::CLOEXEC)?));
        file.set_len(Self::BYTES)?;
        let offset = FileOffset::from_arc(Arc::clone(&file), 0);
        let range = (GuestAddress(0), usize::try_from(Self::BYTES)?, Some(offset));
        let map = GuestMemoryMmap::from_ranges_with_files([range])?;
        Ok(Self {
            host_address: map.get_host_address(GuestAddress(0))? as u64,
            map,
            file,
        })
    }

    /// The memory by guest address.
    pub(crate) fn map(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// The memfd. All of it is the guest's memory.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Where the mapping begins in this process.
    pub(crate) fn host_address(&self) -> u64 {
        self.host_address
    }

    /// The slot, as KVM gets it.
    pub(crate) fn region(&self) -> kvm_userspace_memory_region {
        kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: Self::BYTES,
            userspace_addr: self.host_address,
        }
    }
}
