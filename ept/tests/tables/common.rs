//! Helpers to create guests and mappings.

use hikkoshi_ept::testing::TestMemory;
use hikkoshi_ept::{Capabilities, Gfn, GfnRange, Guest, HostFrame, Mapping};

pub(crate) const HOST: u64 = 1 << 18;

/// 2 GiB.
pub(crate) const PAGES: u64 = 2 << 18;

pub(crate) fn range(start: u64, end: u64) -> GfnRange {
    GfnRange::new(Gfn::new(start), Gfn::new(end))
}

pub(crate) fn guest() -> Guest<TestMemory> {
    Guest::new(TestMemory::new(3000), PAGES, 2, Capabilities::ALL).unwrap()
}

pub(crate) fn ram(start: u64, end: u64) -> Mapping {
    Mapping::ram(range(start, end), HostFrame::new(HOST + start))
}
