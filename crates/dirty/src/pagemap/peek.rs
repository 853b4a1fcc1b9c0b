//! Looking at the log of an extent whose holes the kernel reports: dirty pages are reported, and
//! stay dirty.

use hikkoshi_pages::Extent;

use super::host_extent::{HostExtent, after, first};
use super::scan::{Clear, scan};
use super::{PagemapLog, SEARCH_BYTES};
use crate::log::DirtyError;
use crate::runs::RunCoalescer;

impl PagemapLog {
    /// Reports the dirty pages of an extent.
    pub(super) fn peek_written(
        &self,
        extent: Extent,
        dirty: &mut RunCoalescer<'_>,
    ) -> Result<(), DirtyError> {
        let Some(range) = self.host(extent) else {
            return Ok(());
        };
        let host_extent = HostExtent { extent, range };
        let mut rest = range;
        while rest.len > 0 {
            let window = first(rest, SEARCH_BYTES.min(rest.len));
            scan(&*self.kernel, window, Clear::No, |run| {
                dirty.push(host_extent.pages(run));
            })?;
            rest = after(rest, window.len);
        }
        Ok(())
    }
}
