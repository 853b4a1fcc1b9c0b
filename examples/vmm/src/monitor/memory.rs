//! The guest's memory: a memfd, mapped in this process, and given to KVM in slots.

use std::fs::File;
use std::sync::Arc;

use hikkoshi_dirty::kvm::MemorySlot;
use hikkoshi_memory::{GuestRam, RamFile};
use hikkoshi_pages::{GuestRange, PAGE_BYTES, RamBlock, RamLayout, usize_from};
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::Result;

/// 64 MiB, from guest address 0 on.
pub(crate) const BYTES: u64 = 64 << 20;

/// The pages of a slot. KVM's bitmaps are read a slot at a time, so slots are not too large.
const SLOT_PAGES: u64 = (32 << 20) / PAGE_BYTES;

/// The guest's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    map: GuestMemoryMmap,
    host_address: u64,
    ram: Arc<GuestRam>,
}

impl Memory {
    /// Memory that was never touched.
    pub(crate) fn new() -> Result<Self> {
        let layout = RamLayout::new(vec![RamBlock {
            id: "ram".to_owned(),
            bytes: BYTES,
            host_page: PAGE_BYTES,
            guest: vec![GuestRange {
                gpa: 0,
                offset: 0,
                bytes: BYTES,
            }],
        }])?;
        let file = File::from(memfd_create("ram", MemfdFlags::CLOEXEC)?);
        file.set_len(BYTES)?;
        let mapping =
            MmapRegion::from_file(FileOffset::new(file.try_clone()?, 0), usize_from(BYTES))?;
        let host_address = mapping.as_ptr() as u64;
        let region = GuestRegionMmap::new(mapping, GuestAddress(0)).ok_or("an address overflow")?;
        let ram = GuestRam::new(layout, vec![RamFile::new(file, 0)]).ok_or("one file a block")?;
        Ok(Self {
            map: GuestMemoryMmap::from_regions(vec![region])?,
            host_address,
            ram: Arc::new(ram),
        })
    }

    /// The memory by guest address.
    pub(crate) fn map(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// The memory as the engine reads and fills it.
    pub(crate) fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.ram)
    }

    /// Where the mapping begins in this process.
    pub(crate) fn host_address(&self) -> u64 {
        self.host_address
    }

    /// The slots, as KVM gets them.
    pub(crate) fn slots(&self) -> Vec<MemorySlot> {
        let pages = self.ram.layout().all().chunks(SLOT_PAGES);
        let slot = |(pages, slot): (hikkoshi_pages::PageRange, u32)| {
            let address = pages.start().index() * PAGE_BYTES;
            MemorySlot {
                region: kvm_userspace_memory_region {
                    slot,
                    flags: 0,
                    guest_phys_addr: address,
                    memory_size: pages.bytes(),
                    userspace_addr: self.host_address + address,
                },
                first_page: pages.start(),
            }
        };
        pages.zip(0..).map(slot).collect()
    }

    /// Gives the memory to a virtual machine.
    #[allow(unsafe_code)]
    pub(crate) fn give_to(&self, vm: &VmFd) -> Result<()> {
        for slot in self.slots() {
            // SAFETY: the memory stays mapped until `Machine` has stopped its processor.
            unsafe { vm.set_user_memory_region(slot.region) }?;
        }
        Ok(())
    }
}
