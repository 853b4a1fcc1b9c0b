//! Taking the log of an extent whose holes the kernel reports: dirty pages are reported, and clean
//! afterwards.

use hikkoshi_linux::HostRange;
use hikkoshi_pages::Extent;

use super::host_extent::{HostExtent, after, first};
use super::scan::{Clear, scan, written_areas};
use super::{PagemapLog, SEARCH_BYTES};
use crate::log::DirtyError;
use crate::runs::RunCoalescer;

impl PagemapLog {
    /// Protects and reports the dirty pages of an extent. On an error, reports the rest of the
    /// range of the failed scan, because some of it may have been cleared.
    pub(super) fn take_written(
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
            let reached = written_areas(&*self.kernel, window, &mut areas)?;
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
        let result = scan(&*self.kernel, area, Clear::Yes, |written| {
            reported = written.addr.0 + written.len;
            dirty.push(host_extent.pages(written));
        });
        if result.is_err() {
            let unknown = after(area, reported - area.addr.0);
            dirty.push(host_extent.pages(unknown));
        }
        result
    }
}
