//! The location of a table entry.

use crate::address::{FRAME_SHIFT, HostFrame, usize_from};
use crate::atomic::AtomicU64;
use crate::host_memory::FrameAccess;

/// The entry belongs to a nested view: the addresses of its table are not guest frame numbers.
const NESTED: u64 = 1 << 1;

/// The location of a table entry: the host-physical address of its eight bytes, and whether its
/// table belongs to a nested view. Bit 0 is never set; in a word of the reverse map it marks a
/// chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location(pub(super) u64);

impl Location {
    pub(crate) const fn new(table: HostFrame, index: usize, nested: bool) -> Self {
        let tag = if nested { NESTED } else { 0 };
        Self(table.address() | (index as u64) << 3 | tag)
    }

    pub(crate) const fn table(self) -> HostFrame {
        HostFrame::containing(self.0)
    }

    pub(crate) const fn index(self) -> usize {
        usize_from((self.0 & ((1 << FRAME_SHIFT) - 1)) >> 3)
    }

    pub(crate) const fn is_nested(self) -> bool {
        self.0 & NESTED != 0
    }

    pub(crate) fn slot<M: FrameAccess + ?Sized>(self, memory: &M) -> &AtomicU64 {
        &memory.table(self.table())[self.index()]
    }
}
