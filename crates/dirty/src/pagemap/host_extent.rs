//! Pages and their addresses in the process.

use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_pages::{Extent, PAGE_BYTES, PageRange};

/// An extent of pages, and its host address range in the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostExtent {
    pub(super) extent: Extent,
    pub(super) range: HostRange,
}

impl HostExtent {
    /// Returns the pages of `part`, which is inside the range, rounded up to whole pages.
    pub(super) fn pages(&self, part: HostRange) -> PageRange {
        let start = part.addr.0.saturating_sub(self.range.addr.0);
        let end = start.saturating_add(part.len).div_ceil(PAGE_BYTES);
        let page = |number| self.extent.pages.start().saturating_add(number);
        PageRange::new(page(start / PAGE_BYTES), page(end)).intersect(self.extent.pages)
    }
}

/// Returns the first `len` bytes of a range.
pub(super) fn first(range: HostRange, len: u64) -> HostRange {
    HostRange::new(range.addr, len)
}

/// Returns the range without its first `len` bytes.
pub(super) fn after(range: HostRange, len: u64) -> HostRange {
    let len = len.min(range.len);
    HostRange::new(HostAddr(range.addr.0 + len), range.len - len)
}
