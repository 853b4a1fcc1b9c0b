//! A pool of frames for the crate's tables that counts the frames in use, to detect leaks.

use crate::memory;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use hikkoshi_ept::{FrameAccess, FrameAllocator, HostFrame, Table};

/// The pool. All guests of a run use the same one.
#[derive(Debug)]
pub struct Pool {
    /// Address of the first free frame, whose first word is the address of the next one; 0 if there
    /// is none.
    free: AtomicU64,
    /// Number of frames in use.
    in_use: AtomicUsize,
}

/// The pool that all checks use.
pub static POOL: Pool = Pool {
    free: AtomicU64::new(0),
    in_use: AtomicUsize::new(0),
};

impl Pool {
    /// Returns the number of frames in use.
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

/// Returns the words of a frame of [`memory::FRAMES`].
fn words(frame: HostFrame) -> &'static Table {
    let address = usize::try_from(frame.address()).unwrap_or(usize::MAX);
    assert!(
        memory::FRAMES.contains(&address),
        "{frame} is not a frame for tables"
    );
    // SAFETY: a whole, aligned frame of the region reserved for them, which is never freed; the
    // crate, the processor's walks and this pool access it only by atomic operations.
    unsafe { &*core::ptr::with_exposed_provenance::<Table>(address) }
}

impl FrameAllocator for Pool {
    fn allocate(&self) -> Option<HostFrame> {
        // There is one processor and interrupts are off: no other code runs between the load and
        // the store.
        let frame = match self.free.load(Ordering::Relaxed) {
            0 => HostFrame::containing(memory::Frame::take().address()),
            first => {
                let frame = HostFrame::containing(first);
                self.free
                    .store(words(frame)[0].load(Ordering::Relaxed), Ordering::Relaxed);
                frame
            }
        };
        for word in words(frame) {
            word.store(0, Ordering::Relaxed);
        }
        self.in_use.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }

    fn release(&self, frame: HostFrame) {
        let words = words(frame);
        // A use after this finds entries that are misconfigurations for the processor.
        for word in words {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        words[0].store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free.store(frame.address(), Ordering::Relaxed);
        self.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: `words` returns the frame itself, by its physical address, which is always mapped;
// distinct frames have distinct addresses.
unsafe impl FrameAccess for Pool {
    fn table(&self, frame: HostFrame) -> &Table {
        words(frame)
    }
}
