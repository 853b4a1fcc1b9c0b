//! Host memory for tests.

// Implements what the trait requires: each frame is a separate element of a slice that never moves.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::address::{HostFrame, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::host_memory::{FrameAccess, FrameAllocator, Table};
use crate::spinlock::SpinLock;

/// The content of freed frames: present, reserved bits set, a frame that does not exist.
const POISON: u64 = u64::MAX;

/// The number of the first frame; not zero, so that a missing base address is detected.
const BASE: u64 = 0x100;

/// A fixed number of frames.
pub struct TestMemory {
    frames: Box<[Table]>,
    free: SpinLock<Vec<HostFrame>>,
}

impl TestMemory {
    /// Creates `count` free frames.
    pub fn new(count: u64) -> Self {
        let word = |_| AtomicU64::new(POISON);
        let frames = (0..count).map(|_| core::array::from_fn(word)).collect();
        let free = (0..count)
            .rev()
            .map(|number| HostFrame::new(BASE + number))
            .collect();
        Self {
            frames,
            free: SpinLock::new(free),
        }
    }

    /// Returns the number of free frames.
    pub fn free_frames(&self) -> u64 {
        self.free.lock().len() as u64
    }
}

impl FrameAllocator for TestMemory {
    fn allocate(&self) -> Option<HostFrame> {
        let frame = self.free.lock().pop()?;
        for word in self.table(frame) {
            let old = word.swap(0, Ordering::AcqRel);
            assert_eq!(old, POISON, "{frame} was written to after it was freed");
        }
        Some(frame)
    }

    fn release(&self, frame: HostFrame) {
        for word in self.table(frame) {
            word.store(POISON, Ordering::Release);
        }
        self.free.lock().push(frame);
    }
}

// SAFETY: a frame is one element of the boxed slice: its own 4096 bytes of atomics, at the same
// address as long as `self` lives. Any other frame number panics.
unsafe impl FrameAccess for TestMemory {
    fn table(&self, frame: HostFrame) -> &Table {
        &self.frames[usize_from(frame.index().wrapping_sub(BASE))]
    }
}

impl fmt::Debug for TestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestMemory")
            .field("frames", &self.frames.len())
            .finish_non_exhaustive()
    }
}
