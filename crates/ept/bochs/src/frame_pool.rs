//! Frames for the crate's tables, which come back: so that what was lent can be counted.

use crate::memory;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use hikkoshi_ept::{Frame, FrameAccess, FrameAllocator, Table};

/// The pool. There is one; every guest of a run borrows from it.
#[derive(Debug)]
pub struct Pool {
    /// Address of the first free frame, whose first word is the address of the next; 0: none.
    free: AtomicU64,
    /// Frames that are lent.
    lent: AtomicUsize,
}

/// The pool that all checks use.
pub static POOL: Pool = Pool {
    free: AtomicU64::new(0),
    lent: AtomicUsize::new(0),
};

impl Pool {
    /// How many frames are lent now.
    pub fn lent(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }
}

/// The words of a frame of [`memory::FRAMES`].
fn words(frame: Frame) -> &'static Table {
    let address = usize::try_from(frame.address()).unwrap_or(usize::MAX);
    assert!(
        memory::FRAMES.contains(&address),
        "{frame} is no frame for tables"
    );
    // SAFETY: a whole, aligned frame of the region set aside for them, which stays; the crate, the
    // processor's walks and this pool reach it by atomic accesses only.
    unsafe { &*core::ptr::with_exposed_provenance::<Table>(address) }
}

impl FrameAllocator for Pool {
    fn allocate(&self) -> Option<Frame> {
        // One processor and no interrupts: nobody comes between the load and the store.
        let frame = match self.free.load(Ordering::Relaxed) {
            0 => Frame::containing(memory::Frame::take().address()),
            first => {
                let frame = Frame::containing(first);
                self.free
                    .store(words(frame)[0].load(Ordering::Relaxed), Ordering::Relaxed);
                frame
            }
        };
        for word in words(frame) {
            word.store(0, Ordering::Relaxed);
        }
        self.lent.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }

    fn release(&self, frame: Frame) {
        let words = words(frame);
        // A use after this would meet entries that the processor calls misconfigured.
        for word in words {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        words[0].store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free.store(frame.address(), Ordering::Relaxed);
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: `words` returns the frame itself, by its physical address, which is mapped for good;
// distinct frames have distinct addresses.
unsafe impl FrameAccess for Pool {
    fn table(&self, frame: Frame) -> &Table {
        words(frame)
    }
}
