//! Host memory that the hypervisor provides: frames, and access to them.

// The trait states what the hypervisor guarantees about its memory.
#![allow(unsafe_code)]

use crate::address::{ENTRIES, HostFrame};
use crate::atomic::AtomicU64;

/// The contents of a frame: 512 words that the processor may change at any time.
pub type Table = [AtomicU64; ENTRIES];

/// Allocates and releases 4 KiB frames for tables, the reverse map and page-modification logs.
///
/// Neither method may block, use a [`Guest`](crate::Guest) that has this memory, or wait for a
/// thread that may be using one. The crate calls them in RCU read-side critical sections, for which
/// other threads wait, and sometimes while an entry is frozen, on which other threads spin. So
/// allocate from a list that is filled beforehand, with at most a short lock, and return `None`
/// when it is empty. The operation then reports the error, and the caller can retry it after it has
/// refilled the list.
pub trait FrameAllocator {
    /// Returns a frame filled with zeroes, or `None` if there is none left. Never returns host
    /// frame 0.
    fn allocate(&self) -> Option<HostFrame>;

    /// Releases a frame that [`FrameAllocator::allocate`] returned. Neither a processor nor this
    /// crate uses it any more.
    fn release(&self, frame: HostFrame);
}

/// Makes a frame addressable: by a direct map, a recursive mapping, or plain memory in a test.
///
/// # Safety
///
/// For every frame that the allocator returned and that was not released, [`FrameAccess::table`]
/// must return the 4096 bytes of that frame: the same bytes each time, aligned to 8 bytes, valid
/// for as long as the reference lives, and accessed only by atomic operations (the processor's
/// table walks are such). Distinct frames must not overlap.
///
/// For any other frame it must panic or return words that are safe to read and write: the method is
/// safe, and any code that has the memory can call it with any number. (A direct map checks that
/// the frame is part of it and holds no memory of another owner.)
pub unsafe trait FrameAccess {
    /// Returns the words of `frame`.
    fn table(&self, frame: HostFrame) -> &Table;
}

/// All that the crate requires of host memory.
pub trait HostMemory: FrameAllocator + FrameAccess {}

impl<T: FrameAllocator + FrameAccess + ?Sized> HostMemory for T {}

impl<T: FrameAllocator + ?Sized> FrameAllocator for &T {
    fn allocate(&self) -> Option<HostFrame> {
        (**self).allocate()
    }

    fn release(&self, frame: HostFrame) {
        (**self).release(frame);
    }
}

// SAFETY: the same frames, accessed by the same code.
unsafe impl<T: FrameAccess + ?Sized> FrameAccess for &T {
    fn table(&self, frame: HostFrame) -> &Table {
        (**self).table(frame)
    }
}
