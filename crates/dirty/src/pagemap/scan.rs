//! Scans for written pages and for holes (`PAGEMAP_SCAN`, see [`Pagemap::scan`]).

use std::fmt::Debug;
use std::io;

use hikkoshi_linux::{HostAddr, HostRange, PageCategories, PageQuery, Pagemap};

use hikkoshi_pages::PAGE_BYTES;

use crate::log::DirtyError;

/// Size of the largest range of one protecting scan, and the alignment of its boundaries.
pub(super) const SCAN_BYTES: u64 = 4 << 20;

/// Written pages with no more than this between them are protected by one scan. Measured: one more
/// scan costs as much as about 500 clean pages in a larger one.
const GAP_BYTES: u64 = 2 << 20;

/// Written pages that are searched for at a time. A search costs a third of a protecting scan for
/// each written page (measured).
const SEARCHED_PAGES: u64 = 128;

/// Written pages of tracked memory. Do not request any other category: with others, the kernel
/// reports pages that are not populated as clean and does not protect them.
const WRITTEN: PageQuery = PageQuery {
    all_of: PageCategories::WRITTEN,
    any_of: PageCategories::NONE,
    none_of: PageCategories::NONE,
    report: PageCategories::WRITTEN,
    protect: false,
    only_tracked: true,
    max_pages: 0,
    max_regions: 0,
};

/// Pages of tracked memory that have neither a page nor a mark of protection: never protected, or
/// dropped since. Memory without a page table is reported, too.
const HOLES: PageQuery = PageQuery {
    all_of: PageCategories::NONE,
    none_of: PageCategories::PRESENT.or(PageCategories::SWAPPED),
    report: PageCategories::PRESENT,
    ..WRITTEN
};

/// The kernel's scan of a process's memory. A test can put one with a defect in its place.
#[doc(hidden)]
pub trait Scan: Send + Sync + Debug {
    /// Does what [`Pagemap::scan`] does.
    fn scan(
        &self,
        range: HostRange,
        query: &PageQuery,
        found: &mut dyn FnMut(HostRange, PageCategories),
    ) -> io::Result<HostAddr>;
}

impl Scan for Pagemap {
    fn scan(
        &self,
        range: HostRange,
        query: &PageQuery,
        found: &mut dyn FnMut(HostRange, PageCategories),
    ) -> io::Result<HostAddr> {
        Pagemap::scan(self, range, query, found)
    }
}

/// Whether a scan makes the reported pages clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clear {
    /// Protect the reported pages.
    Yes,
    /// Change nothing. KVM then keeps its mappings.
    No,
}

/// Reports the written runs of `range`, in ascending order. Adjacent runs may be reported
/// separately.
///
/// On an error, pages that were not reported may have been cleared.
pub(crate) fn scan(
    kernel: &dyn Scan,
    range: HostRange,
    clear: Clear,
    mut written: impl FnMut(HostRange),
) -> Result<(), DirtyError> {
    let query = PageQuery {
        protect: clear == Clear::Yes,
        ..WRITTEN
    };
    scan_all(kernel, range, &query, &mut written)
}

/// Reports the holes of `range`, in ascending order, and changes nothing. Adjacent ones may be
/// reported separately.
pub(super) fn holes(
    kernel: &dyn Scan,
    range: HostRange,
    mut found: impl FnMut(HostRange),
) -> Result<(), DirtyError> {
    scan_all(kernel, range, &HOLES, &mut found)
}

fn scan_all(
    kernel: &dyn Scan,
    range: HostRange,
    query: &PageQuery,
    found: &mut dyn FnMut(HostRange),
) -> Result<(), DirtyError> {
    let end = range.addr.0.saturating_add(range.len);
    let mut rest = range;
    while rest.len > 0 {
        let reached = scan_once(kernel, range, rest, query, found)?;
        rest = HostRange::new(reached, end.saturating_sub(reached.0));
    }
    Ok(())
}

/// Returns the address of the first written page of `range`.
pub(super) fn first_written(
    kernel: &dyn Scan,
    range: HostRange,
) -> Result<Option<HostAddr>, DirtyError> {
    let query = PageQuery {
        max_pages: 1,
        ..WRITTEN
    };
    let mut first = None;
    scan_once(kernel, range, range, &query, &mut |found| {
        first = first.or(Some(found.addr));
    })?;
    Ok(first)
}

/// Replaces `areas` by areas of `range` in which there are written pages, in ascending order. They
/// do not cross a boundary of [`SCAN_BYTES`]. Makes one call. Returns the end of the part of
/// `range` that was searched, or is in an area.
pub(super) fn written_areas(
    kernel: &dyn Scan,
    range: HostRange,
    areas: &mut Vec<HostRange>,
) -> Result<HostAddr, DirtyError> {
    areas.clear();
    let query = PageQuery {
        max_pages: SEARCHED_PAGES,
        ..WRITTEN
    };
    let mut pages = 0;
    let reached = scan_once(kernel, range, range, &query, &mut |found| {
        pages += found.len / PAGE_BYTES;
        add_area(areas, found);
    })?;
    // If the search has ended in an area with many written pages, more will follow: do not search
    // for each of them.
    if pages >= SEARCHED_PAGES
        && let Some(last) = areas.last_mut()
        && last.len >= SEARCHED_PAGES / 2 * PAGE_BYTES
    {
        let end = next_boundary(last.addr.0).min(range.addr.0 + range.len);
        last.len = end - last.addr.0;
        return Ok(HostAddr(reached.0.max(end)));
    }
    Ok(reached)
}

/// Adds a written run to the last area if it is near, otherwise as another area.
fn add_area(areas: &mut Vec<HostRange>, found: HostRange) {
    let end = found.addr.0 + found.len;
    let mut start = found.addr.0;
    if let Some(last) = areas.last_mut()
        && start - (last.addr.0 + last.len) <= GAP_BYTES
    {
        let boundary = next_boundary(last.addr.0);
        if start < boundary {
            last.len = end.min(boundary) - last.addr.0;
            start = end.min(boundary);
        }
    }
    while start < end {
        let area = HostRange::new(HostAddr(start), end.min(next_boundary(start)) - start);
        start += area.len;
        areas.push(area);
    }
}

fn next_boundary(address: u64) -> u64 {
    address - address % SCAN_BYTES + SCAN_BYTES
}

/// Makes one call for `rest`, the rest of `range`. Returns where it ended.
fn scan_once(
    kernel: &dyn Scan,
    range: HostRange,
    rest: HostRange,
    query: &PageQuery,
    written: &mut dyn FnMut(HostRange),
) -> Result<HostAddr, DirtyError> {
    kernel
        .scan(rest, query, &mut |found, _| written(found))
        .map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => DirtyError::NotTracked { range },
            _ => DirtyError::Scan { range, source },
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, count: u64) -> HostRange {
        HostRange::new(HostAddr(first * PAGE_BYTES), count * PAGE_BYTES)
    }

    fn areas(found: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut areas = Vec::new();
        for (first, count) in found {
            add_area(&mut areas, pages(*first, *count));
        }
        let page = |area: &HostRange| (area.addr.0 / PAGE_BYTES, area.len / PAGE_BYTES);
        areas.iter().map(page).collect()
    }

    #[test]
    fn runs_that_are_near_are_one_area() {
        assert_eq!(areas(&[(10, 1), (523, 2)]), [(10, 515)]);
        assert_eq!(areas(&[(10, 1), (524, 2)]), [(10, 1), (524, 2)]);
    }

    #[test]
    fn areas_end_at_the_boundaries_of_scans() {
        assert_eq!(
            areas(&[(1000, 1100)]),
            [(1000, 24), (1024, 1024), (2048, 52)]
        );
        assert_eq!(areas(&[(1020, 1), (1022, 4)]), [(1020, 4), (1024, 2)]);
        assert_eq!(areas(&[(1020, 1), (1030, 4)]), [(1020, 1), (1030, 4)]);
    }
}
