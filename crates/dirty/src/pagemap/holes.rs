//! Memory whose holes a scan for written pages does not report.
//!
//! A guest that returns a page (a balloon with free page reporting) may have cleared it before, and
//! relies on the zeros: Linux with `init_on_free` does not clear it again. If the page was dirty,
//! its protection is gone, and its entry in the page table is empty. A scan for written pages
//! reports that, except where (measured by `make test-kernels`):
//!
//! * the page table is gone, too. Kernels from 6.14 on with `CONFIG_PT_RECLAIM` free it when 2 MiB
//!   are dropped at once, and did not report memory without a page table before mid-2026 (6.16.3,
//!   6.18.15, 6.19.14 and 7.0.13 do not, 6.18.44 does);
//! * it is a page of hugetlb memory (all kernels, 6.18.44 included).
//!
//! Such memory is scanned for holes as well. A hole is dirty: the log protects it and reports it. A
//! clean page that is dropped from shared memory is not a hole; its protection stays.

use hikkoshi_linux::HostRange;
use hikkoshi_pages::{Extent, PageBitmap, PageRange};

use super::host_extent::{HostExtent, after, first};
use super::scan::{Clear, SCAN_BYTES, first_written, holes, scan};
use super::{PagemapLog, SEARCH_BYTES};
use crate::log::DirtyError;
use crate::runs::RunCoalescer;

impl PagemapLog {
    /// Protects and reports the dirty pages and the holes of an extent. The kernel clears whole
    /// huge pages, and a hole may be larger than the requested part of it. So everything that is
    /// cleared is added to `pending`, and the requested part is removed from there.
    pub(super) fn take_with_holes(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let aligned = self.layout.round_out(extent.pages);
        for whole in self.layout.locate_range(aligned) {
            let Some(range) = self.host(whole) else {
                continue;
            };
            let host_extent = HostExtent {
                extent: whole,
                range,
            };
            let mut rest = range;
            while rest.len > 0 {
                // The size is a multiple of every huge page size that can be tracked, and blocks
                // are aligned to huge pages.
                let piece = first(rest, (SCAN_BYTES - rest.addr.0 % SCAN_BYTES).min(rest.len));
                let result = self.clear(piece, host_extent, pending);
                if result.is_err() {
                    pending.set_range(host_extent.pages(piece));
                }
                let mut wanted = host_extent.pages(piece).intersect(extent.pages);
                while let Some(run) = pending.claim_run(wanted, u64::MAX) {
                    dirty.push(run);
                    wanted = PageRange::new(run.end(), wanted.end());
                }
                result?;
                rest = after(rest, piece.len);
            }
        }
        Ok(())
    }

    /// Protects the dirty pages and the holes of `piece`, and adds them to `cleared`.
    fn clear(
        &self,
        piece: HostRange,
        host_extent: HostExtent,
        cleared: &PageBitmap,
    ) -> Result<(), DirtyError> {
        if first_written(&*self.kernel, piece)?.is_some() {
            scan(&*self.kernel, piece, Clear::Yes, |written| {
                cleared.set_range(host_extent.pages(written));
            })?;
        }
        // In this order: a page that is dropped after the first scan was reported by it.
        let mut found = Vec::new();
        holes(&*self.kernel, piece, |hole| found.push(hole))?;
        for hole in found {
            self.userfault
                .write_protect(hole, true)
                .map_err(DirtyError::ProtectHole)?;
            cleared.set_range(host_extent.pages(hole));
        }
        Ok(())
    }

    /// Reports the dirty pages and the holes of an extent, and what a take has cleared before and
    /// nobody has asked for. Changes nothing.
    pub(super) fn peek_with_holes(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let aligned = self.layout.round_out(extent.pages);
        for whole in self.layout.locate_range(aligned) {
            let Some(range) = self.host(whole) else {
                continue;
            };
            let host_extent = HostExtent {
                extent: whole,
                range,
            };
            let mut rest = range;
            while rest.len > 0 {
                let window = first(rest, SEARCH_BYTES.min(rest.len));
                let pages = host_extent.pages(window);
                let mut found: Vec<PageRange> = pending.runs(pages).collect();
                scan(&*self.kernel, window, Clear::No, |written| {
                    found.push(host_extent.pages(written));
                })?;
                holes(&*self.kernel, window, |hole| {
                    found.push(host_extent.pages(hole));
                })?;
                push_merged(found, pages.intersect(extent.pages), dirty);
                rest = after(rest, window.len);
            }
        }
        Ok(())
    }
}

/// Reports the pages of `found` that are in `within`, each once, in ascending order.
fn push_merged(mut found: Vec<PageRange>, within: PageRange, dirty: &mut RunCoalescer<'_>) {
    found.sort_unstable_by_key(|run| run.start());
    let mut reported = within.start();
    for run in found {
        let run = run.intersect(PageRange::new(reported, within.end()));
        if !run.is_empty() {
            dirty.push(run);
            reported = run.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use hikkoshi_pages::Page;

    use super::*;

    #[test]
    fn runs_that_overlap_are_reported_once_and_clipped() {
        let run = |start, end| PageRange::new(Page::new(start), Page::new(end));
        let found = vec![run(20, 30), run(3, 9), run(5, 7), run(8, 12), run(28, 50)];
        let mut reported = Vec::new();
        let mut to = |run| reported.push(run);
        let mut dirty = RunCoalescer::new(&mut to);
        push_merged(found, run(4, 40), &mut dirty);
        drop(dirty);
        assert_eq!(reported, [run(4, 12), run(20, 40)]);
    }
}
