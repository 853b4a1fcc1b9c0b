//! A dirty ring in memory that is shared with the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use hikkoshi_pages::{PAGE_BYTES, usize_from};
use kvm_bindings::{KVM_DIRTY_LOG_PAGE_OFFSET, kvm_dirty_gfn};
use kvm_ioctls::VcpuFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

// `kvm_dirty_gfn.flags`; the bindings have only the mask of both.
/// The kernel has filled the entry.
const DIRTY: u32 = 1;
/// The entry was harvested, and the kernel may reset it.
const HARVESTED: u32 = 2;

/// An entry: page number `offset` of a slot was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirtyPage {
    pub(super) slot: u32,
    pub(super) offset: u64,
}

/// The ring of one processor, and the entry to be harvested next.
#[derive(Debug)]
pub(super) struct RingMemory {
    entries: NonNull<kvm_dirty_gfn>,
    /// Number of entries: a power of two, which KVM has checked.
    count: u32,
    next: u32,
}

// SAFETY: the mapping belongs to this object alone, and any thread may access it.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Maps the ring of a processor. It stays valid even if the processor's descriptor is closed.
    pub(super) fn map(vcpu: &VcpuFd, count: u32) -> io::Result<Self> {
        let offset = u64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * PAGE_BYTES;
        // SAFETY: the descriptor is open as long as `vcpu` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes(count),
                protection,
                MapFlags::SHARED,
                fd,
                offset,
            )?
        };
        Ok(Self {
            entries: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            count,
            next: 0,
        })
    }

    /// Harvests the next entry, if the kernel has filled it. An entry is harvested once, until the
    /// kernel has reset it.
    pub(super) fn pop(&mut self) -> Option<DirtyPage> {
        let index = usize_from(u64::from(self.next % self.count));
        // SAFETY: the entry is inside the mapping, which lives as long as `self`.
        let entry = unsafe { self.entries.add(index) };
        // SAFETY: aligned, inside the mapping, and both sides access the flags atomically.
        let flags = unsafe { AtomicU32::from_ptr(&raw mut (*entry.as_ptr()).flags) };
        // Together with the kernel's release: what it wrote to the entry before is visible.
        if flags.load(Ordering::Acquire) != DIRTY {
            return None;
        }
        // SAFETY: as above; from now until the entry is given back, the kernel does not change it.
        let page = unsafe {
            DirtyPage {
                slot: (&raw const (*entry.as_ptr()).slot).read_volatile(),
                offset: (&raw const (*entry.as_ptr()).offset).read_volatile(),
            }
        };
        flags.store(HARVESTED, Ordering::Release);
        self.next = self.next.wrapping_add(1);
        Some(page)
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: a mapping of this object, to which there are no references any more.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), bytes(self.count)) };
    }
}

fn bytes(count: u32) -> usize {
    usize_from(count.into()) * size_of::<kvm_dirty_gfn>()
}
