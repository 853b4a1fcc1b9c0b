//! What is in the RAM files: with post-copy that is what has been received.
//!
//! A page that is there is never asked for, whatever it holds. So before the
//! guest may run here everything that is owed must be seen to be absent: a
//! monitor that has read the guest's memory meanwhile (`pmemsave`, `xp`, a
//! debugger) has filled holes with zeros.

use hikkoshi_memory::{MemoryError, RamWriter};

use crate::destination::error::DestinationFailure;
use crate::destination::postcopy::installer::Installer;

/// Makes sure that nothing of what the source owes is there, and drops again
/// what is. All of it must be registered, and nobody may bring pages meanwhile.
///
/// # Errors
/// [`MemoryError::Drop`] when something is there still.
pub(crate) fn drop_owed(
    memory: &RamWriter,
    installer: &Installer,
) -> Result<(), DestinationFailure> {
    if !memory.may_hold_more()? {
        return Ok(());
    }
    let mut pages = 0;
    for range in installer.missing.ranges() {
        for extent in memory.ram().layout().locate_range(range) {
            // One look for many small pages, and one for each huge page.
            let host_page = installer
                .copier
                .layout()
                .host_page_range(extent.pages.start());
            let step = match host_page.len() {
                1 => extent.pages.len(),
                huge => huge,
            };
            for range in extent.pages.chunks(step) {
                if installer.copier.holds(range)? {
                    memory.drop_stale(range)?;
                    pages += range.len();
                    if installer.copier.holds(range)? {
                        return Err(MemoryError::Drop { range, cause: None }.into());
                    }
                }
            }
        }
    }
    if pages > 0 {
        tracing::warn!(
            pages,
            "pages that are still to come were here already and were dropped again: something has \
             read or written the guest's memory here, a monitor command for instance"
        );
    }
    Ok(())
}
