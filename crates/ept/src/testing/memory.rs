//! Host memory for the tables.

// Promises what the trait asks for: each frame is its own element of a vector that never moves.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::address::{Frame, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::host_memory::{FrameAccess, FrameAllocator, Table};
use crate::spinlock::SpinLock;

/// What a freed frame is filled with: present, reserved bits set, a frame that does not exist.
const POISON: u64 = u64::MAX;

/// The number of the first frame: not zero, so that a forgotten base shows.
const BASE: u64 = 0x100;

/// A fixed number of frames.
pub struct TestMemory {
    frames: Box<[Table]>,
    free: SpinLock<Vec<Frame>>,
}

impl TestMemory {
    /// `count` frames, all free.
    pub fn new(count: u64) -> Self {
        let word = |_| AtomicU64::new(POISON);
        let frames = (0..count).map(|_| core::array::from_fn(word)).collect();
        let free = (0..count)
            .rev()
            .map(|number| Frame::new(BASE + number))
            .collect();
        Self {
            frames,
            free: SpinLock::new(free),
        }
    }

    /// The number of free frames.
    pub fn free_frames(&self) -> u64 {
        self.free.lock().len() as u64
    }
}

impl FrameAllocator for TestMemory {
    fn allocate(&self) -> Option<Frame> {
        let frame = self.free.lock().pop()?;
        for word in self.table(frame) {
            let old = word.swap(0, Ordering::AcqRel);
            assert_eq!(old, POISON, "{frame} was written after it had been freed");
        }
        Some(frame)
    }

    fn release(&self, frame: Frame) {
        for word in self.table(frame) {
            word.store(POISON, Ordering::Release);
        }
        self.free.lock().push(frame);
    }
}

// SAFETY: a frame is one element of the boxed slice: 4096 bytes of atomics, its own, in one place as long
// as `self` lives. A number that is none of ours panics.
unsafe impl FrameAccess for TestMemory {
    fn table(&self, frame: Frame) -> &Table {
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
