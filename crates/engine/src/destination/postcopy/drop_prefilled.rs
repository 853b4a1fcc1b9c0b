//! Dropping pages that are present although the source has not sent them.
//!
//! With post-copy, "present" means "received": a page that is present is never requested, whatever
//! it contains. A monitor that reads the guest's memory meanwhile (`pmemsave`, `xp`, a debugger)
//! fills holes with zeros. So before the guest may run here, every page that the source owes must
//! be absent.

use hikkoshi_memory::{MemoryError, PresenceError, RamWriter};

use crate::destination::error::DestinationFailure;
use crate::destination::postcopy::installer::Installer;

/// What the missing pages are looked at for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// Whether they were filled before they were registered, or since.
    Start,
    /// Whether they were filled although they are registered: through another mapping of a file.
    /// Nothing but the guest's process has its anonymous memory.
    Registration,
}

/// Checks that every missing page is absent, and drops those that are present. All of the memory
/// must be registered, and no page may be received meanwhile.
///
/// # Errors
/// [`MemoryError::Drop`] when a page is still present.
pub(crate) fn drop_prefilled(
    memory: &RamWriter,
    installer: &Installer,
    since: Since,
) -> Result<(), DestinationFailure> {
    // Queried for each block: a guest whose RAM is in files has some private memory, too, and few
    // pages are missing there.
    let mut blocks = memory.blocks_that_may_hold_more()?;
    if since == Since::Registration {
        for (may, backing) in blocks.iter_mut().zip(memory.ram().backings()) {
            *may &= backing
                .private()
                .is_none_or(|memory| memory.file().is_some());
        }
    }
    if !blocks.contains(&true) {
        return Ok(());
    }
    let mut present = Vec::new();
    let layout = memory.ram().layout();
    for ((_, pages), _) in layout.blocks().zip(&blocks).filter(|(_, may)| **may) {
        let host_page = installer.copier.layout().host_page_range(pages.start());
        if host_page.len() == 1 {
            // The pages that are here are looked up once, not each missing range by itself: there
            // are many of those, and the guest is paused.
            let here = |data| present.extend(installer.missing.ranges_in(data));
            let looked = memory.ram().data_runs(pages, here);
            looked.map_err(PresenceError::from)?;
            continue;
        }
        for range in installer.missing.ranges_in(pages) {
            for range in range.chunks(host_page.len()) {
                if installer.copier.holds(range)? {
                    present.push(range);
                }
            }
        }
    }
    memory.drop_stale(&present)?;
    for &range in &present {
        if installer.copier.holds(range)? {
            return Err(MemoryError::Drop { range, cause: None }.into());
        }
    }
    let pages: u64 = present.iter().map(|range| range.len()).sum();
    if pages > 0 {
        tracing::warn!(
            pages,
            "pages that are still to come were here already and were dropped again: something has \
             read or written the guest's memory here, a monitor command for instance"
        );
    }
    Ok(())
}
