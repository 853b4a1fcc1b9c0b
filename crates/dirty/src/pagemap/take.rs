//! Taking the log of an extent: dirty pages are reported, and clean afterwards.

use hikkoshi_linux::HostRange;
use hikkoshi_pages::{Extent, PageRange};

use super::host_extent::{HostExtent, after, first};
use super::scan::{Clear, SCAN_BYTES, first_written, scan, written_areas};
use super::{PagemapLog, SEARCH_BYTES};
use crate::log::DirtyError;
use crate::runs::RunCoalescer;

impl PagemapLog {
    /// Protects and reports the dirty pages of memory with 4 KiB pages. On an error, reports the
    /// rest of the range of the failed scan, because some of it may have been cleared.
    pub(super) fn take_base_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(range) = self.host(extent) else {
            return Ok(());
        };
        let host_extent = HostExtent { extent, range };
        let mut areas = Vec::new();
        let mut rest = range;
        while rest.len > 0 {
            let window = first(rest, SEARCH_BYTES.min(rest.len));
            let reached = written_areas(&self.pagemap, window, &mut areas)?;
            for area in &areas {
                self.take_area(*area, host_extent, dirty)?;
            }
            rest = after(rest, reached.0.saturating_sub(rest.addr.0));
        }
        Ok(())
    }

    /// Protects and reports the dirty pages of an area. On an error, reports the rest of the area.
    fn take_area(
        &self,
        area: HostRange,
        host_extent: HostExtent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let mut reported = area.addr.0;
        let result = scan(&self.pagemap, area, Clear::Yes, |written| {
            reported = written.addr.0 + written.len;
            dirty.push(host_extent.pages(written));
        });
        if result.is_err() {
            let unknown = after(area, reported - area.addr.0);
            dirty.push(host_extent.pages(unknown));
        }
        result
    }

    /// Protects and reports the dirty pages of memory with huge pages. The kernel clears whole huge
    /// pages, so everything it clears is added to `pending`, and the requested part is removed from
    /// there.
    pub(super) fn take_huge_pages(
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
                let result = match first_written(&self.pagemap, piece) {
                    Ok(None) => Ok(()),
                    Ok(Some(_)) => scan(&self.pagemap, piece, Clear::Yes, |written| {
                        pending.set_range(host_extent.pages(written));
                    }),
                    Err(error) => Err(error),
                };
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
}
