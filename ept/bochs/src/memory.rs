//! Physical memory: its layout, the heap, and single frames.
//!
//! Physical and virtual addresses are the same here (src/boot/long.rs), so a physical address can
//! be cast to a pointer.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size of a frame in bytes.
pub const FRAME: usize = 4096;

/// The heap of the Rust program.
const HEAP: core::ops::Range<usize> = 0x40_0000..0x400_0000;
/// Frames for page tables, VMCSs and logs.
pub const FRAMES: core::ops::Range<usize> = 0x400_0000..0x800_0000;
/// The guest's memory: its address 0 is the first byte here. Aligned to 2 MiB, so that superpages
/// can map it.
pub const GUEST: core::ops::Range<usize> = 0x800_0000..0xa00_0000;

/// A heap that only grows. A run is short, and memory that is never reused makes a use after free
/// visible.
struct Heap {
    next: AtomicUsize,
}

#[global_allocator]
static THE_HEAP: Heap = Heap {
    next: AtomicUsize::new(HEAP.start),
};

// SAFETY: each call returns a separate, aligned piece of the heap's range, which has no other use;
// null if there is no space left.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let place = |next: usize| next.checked_next_multiple_of(layout.align());
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                place(next)?
                    .checked_add(layout.size())
                    .filter(|end| *end <= HEAP.end)
            });
        match taken.map(place) {
            Ok(Some(start)) => core::ptr::with_exposed_provenance_mut(start),
            _ => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

/// A frame of physical memory, from [`FRAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(usize);

static NEXT_FRAME: AtomicUsize = AtomicUsize::new(FRAMES.start);

impl Frame {
    /// Takes an unused frame; its content is undefined. Ends the run if there is none.
    pub fn take() -> Frame {
        let taken = NEXT_FRAME.fetch_add(FRAME, Ordering::Relaxed);
        if taken >= FRAMES.end {
            crate::fail("no free frame");
        }
        Frame(taken)
    }

    /// Takes an unused frame and fills it with zeroes.
    pub fn zeroed() -> Frame {
        let frame = Frame::take();
        // SAFETY: a frame that was just taken: nothing else refers to it.
        unsafe { core::ptr::write_bytes(frame.pointer(), 0, FRAME) };
        frame
    }

    /// Returns its physical address.
    pub fn address(self) -> u64 {
        self.0 as u64
    }

    /// Returns a pointer to its memory.
    pub fn pointer(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.0)
    }
}
