//! Looking at the log of an extent: dirty pages are reported, and stay dirty.

use hikkoshi_pages::{Extent, PageBitmap, PageRange};

use super::host_extent::{HostExtent, after, first};
use super::scan::{Clear, scan};
use super::{PagemapLog, SEARCH_BYTES};
use crate::log::DirtyError;
use crate::runs::RunCoalescer;

impl PagemapLog {
    /// Reports the dirty pages of memory with 4 KiB pages.
    pub(super) fn peek_base_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        self.peek_kernel(extent, |written| dirty.push(written))
    }

    /// Reports the dirty pages of memory with huge pages: what the kernel reports now, and what it
    /// has reported before and no take has asked for.
    pub(super) fn peek_huge_pages(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let all = PageBitmap::empty(self.layout.pages());
        for run in pending.runs(extent.pages) {
            all.set_range(run);
        }
        let aligned = self.layout.round_out(extent.pages);
        for whole in self.layout.locate_range(aligned) {
            self.peek_kernel(whole, |written| {
                all.set_range(written);
            })?;
        }
        for run in all.runs(extent.pages) {
            dirty.push(run);
        }
        Ok(())
    }

    /// Reports what the kernel says was written, and changes nothing.
    fn peek_kernel(
        &self,
        extent: Extent,
        mut written: impl FnMut(PageRange),
    ) -> Result<(), DirtyError> {
        let Some(range) = self.host(extent) else {
            return Ok(());
        };
        let host_extent = HostExtent { extent, range };
        let mut rest = range;
        while rest.len > 0 {
            let window = first(rest, SEARCH_BYTES.min(rest.len));
            scan(&self.pagemap, window, Clear::No, |run| {
                written(host_extent.pages(run));
            })?;
            rest = after(rest, window.len);
        }
        Ok(())
    }
}
