//! What the hypervisor lends: frames, and a way to reach them.

// The trait states what the hypervisor promises about its memory.
#![allow(unsafe_code)]

use crate::address::{ENTRIES, Frame};
use crate::atomic::AtomicU64;

/// The content of a frame, as 512 words that the processor may change at any time.
pub type Table = [AtomicU64; ENTRIES];

/// Gives and takes back frames of 4 KiB for tables, the reverse map and page-modification logs.
///
/// Both must neither block nor use a [`Guest`](crate::Guest) whose memory this is, nor wait for a thread that
/// may be using one: the crate calls them while it is inside the tables, for which others wait, and in
/// places while it holds an entry busy, on which others spin. So: take frames from a list that is filled
/// beforehand, under a short lock at most, and answer `None` when it is empty. Every operation says so
/// then, and can be tried again after memory was found, outside of it.
pub trait FrameAllocator {
    /// A frame filled with zeroed_words, or `None` if there is none left. Never host frame 0.
    fn allocate(&self) -> Option<Frame>;

    /// Takes back a frame that [`FrameAllocator::allocate`] gave. Neither a processor nor this crate
    /// uses it any more.
    fn release(&self, frame: Frame);
}

/// Makes a frame addressable: a direct map, a recursive mapping, or plain memory in a test.
///
/// # Safety
///
/// For every frame that the allocator gave and did not get back, [`FrameAccess::table`] must return the
/// 4096 bytes of that frame, the same ones each time, aligned to 8 bytes, valid for as long as the
/// reference lives, and not reached by anything but atomic accesses (the processor's table walks are
/// such). Distinct frames must not overlap.
///
/// For any other frame it must panic, or return words that are safe to read and write: the method is a safe one,
/// and whoever has the memory can call it with any number. (A direct map checks that the frame lies in
/// it, and that it holds no memory of anybody else's.)
pub unsafe trait FrameAccess {
    /// The words of `frame`.
    fn table(&self, frame: Frame) -> &Table;
}

/// Everything the crate asks of a host's memory.
pub trait HostMemory: FrameAllocator + FrameAccess {}

impl<T: FrameAllocator + FrameAccess + ?Sized> HostMemory for T {}

impl<T: FrameAllocator + ?Sized> FrameAllocator for &T {
    fn allocate(&self) -> Option<Frame> {
        (**self).allocate()
    }

    fn release(&self, frame: Frame) {
        (**self).release(frame);
    }
}

// SAFETY: the same frames, reached by the same code.
unsafe impl<T: FrameAccess + ?Sized> FrameAccess for &T {
    fn table(&self, frame: Frame) -> &Table {
        (**self).table(frame)
    }
}
