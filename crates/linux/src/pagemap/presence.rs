//! Which pages of private memory a process has: present, swapped out, or being moved.
//!
//! `PAGEMAP_SCAN` skips memory that was never touched and reports long runs at once. It reports
//! write-protected holes as swapped, so those are looked up in the entries. Kernels before 6.7 have
//! only the entries.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::entry::{ENTRY_BYTES, PAGE_BYTES, holds_page};
use super::{PageCategories, PageQuery, Pagemap};
use crate::address::{HostAddr, HostRange};

/// Entries that are read at a time: what one page-table page maps.
const ENTRIES: usize = 512;

/// Regions of one scan that may end early: an early end walks little further than necessary.
const FEW_REGIONS: usize = 2;

/// What [`Pagemap::pages`] does with a run.
type Found<'a> = &'a mut dyn FnMut(HostRange) -> io::Result<ControlFlow<()>>;

impl Pagemap {
    /// Calls `found` with the runs of pages that the process has in `range` (whole pages), in
    /// ascending order, until it returns `Break`. Adjacent runs may be reported separately.
    /// Allocates nothing, and changes nothing in the process.
    ///
    /// Pages of a file that the process has mapped privately are reported while they are mapped,
    /// copied or not. Memory that is mapped but was never touched is not reported.
    ///
    /// # Errors
    ///
    /// As reading the pagemap, and those of `found`.
    pub fn pages(
        &self,
        range: HostRange,
        mut found: impl FnMut(HostRange) -> io::Result<ControlFlow<()>>,
    ) -> io::Result<()> {
        self.walk(range, 0, &mut found).map(drop)
    }

    /// The first run of pages that the process has in `range`.
    ///
    /// # Errors
    ///
    /// The errors of [`pages`](Self::pages).
    pub fn first_pages(&self, range: HostRange) -> io::Result<Option<HostRange>> {
        let mut first: Option<HostRange> = None;
        let _ended_early = self.walk(range, FEW_REGIONS, &mut |run| {
            match &mut first {
                None => first = Some(run),
                Some(before) if before.addr.0 + before.len == run.addr.0 => before.len += run.len,
                Some(_) => return Ok(ControlFlow::Break(())),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(first)
    }

    fn walk(
        &self,
        range: HostRange,
        max_regions: usize,
        found: Found<'_>,
    ) -> io::Result<ControlFlow<()>> {
        let end = range.addr.0.saturating_add(range.len);
        let query = PageQuery {
            any_of: PageCategories::PRESENT | PageCategories::SWAPPED,
            report: PageCategories::PRESENT | PageCategories::SWAPPED,
            max_regions,
            ..PageQuery::default()
        };
        let mut rest = range;
        while rest.len > 0 && !self.entries_only.load(Ordering::Relaxed) {
            let mut result = Ok(ControlFlow::Continue(()));
            let scanned = self.scan(rest, &query, &mut |run, categories| {
                if matches!(result, Ok(ControlFlow::Continue(()))) {
                    result = if categories.contains(PageCategories::PRESENT) {
                        found(run)
                    } else {
                        self.walk_entries(run, found)
                    };
                }
            });
            match scanned {
                Ok(reached) => {
                    if result?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    rest = HostRange::new(reached, end.saturating_sub(reached.0));
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    self.entries_only.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        self.walk_entries(rest, found)
    }

    fn walk_entries(&self, range: HostRange, found: Found<'_>) -> io::Result<ControlFlow<()>> {
        let mut bytes = [0; ENTRIES * ENTRY_BYTES];
        let end = range.addr.0.saturating_add(range.len);
        let mut at = range.addr.0;
        let mut run = HostRange::new(HostAddr(at), 0);
        while at < end {
            let pages = ((end - at).div_ceil(PAGE_BYTES)).min(ENTRIES as u64);
            let bytes = usize::try_from(pages)
                .ok()
                .and_then(|pages| bytes.get_mut(..pages * ENTRY_BYTES))
                .ok_or(io::ErrorKind::InvalidInput)?;
            self.entries(HostAddr(at), bytes)?;
            let (entries, _) = bytes.as_chunks();
            for entry in entries {
                if holds_page(u64::from_ne_bytes(*entry)) {
                    run.len += PAGE_BYTES;
                } else {
                    if run.len > 0 && found(run)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    run = HostRange::new(HostAddr(at + PAGE_BYTES), 0);
                }
                at += PAGE_BYTES;
            }
        }
        if run.len > 0 {
            return found(run);
        }
        Ok(ControlFlow::Continue(()))
    }
}
