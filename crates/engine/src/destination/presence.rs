//! What is in the RAM files: with post-copy that is what has been received.
//!
//! A page that is there is never asked for, whatever it holds. So before the
//! guest may run here everything that is owed must be seen to be absent: a
//! monitor that has read the guest's memory meanwhile (`pmemsave`, `xp`, a
//! debugger) has filled holes with zeros.

use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_pages::{PAGE_BYTES, PageRange};
use hikkoshi_userfault::{RangeError, Userfault};
use thiserror::Error;

use super::error::DestinationFailure;
use super::installer::Installer;
use super::memory::Memory;
use crate::ram::RamFiles;

/// It could not be found out which pages are there.
#[derive(Debug, Error)]
#[error("looking which pages of the guest's memory are here: {0}")]
pub enum PresenceError {
    /// The file system.
    File(#[from] std::io::Error),
    /// The userfaultfd.
    Userfault(#[from] RangeError),
}

/// Tells which pages are not there: holes of tmpfs, and huge pages that
/// hugetlbfs has not. `hosts` says where each block begins in the process that
/// `userfault` belongs to, and in which all of it is registered.
pub(super) fn missing(
    ram: &RamFiles,
    userfault: &Userfault,
    hosts: &[u64],
    mut each: impl FnMut(PageRange),
) -> Result<(), PresenceError> {
    for ((block, pages), &host) in ram.layout().blocks().zip(hosts) {
        if block.host_page == PAGE_BYTES {
            let mut rest = pages;
            while let Some(data) = ram.next_data(rest)? {
                each(PageRange::new(rest.start(), data.start()));
                rest = PageRange::new(data.end(), rest.end());
            }
            each(rest);
            continue;
        }
        for page in pages.chunks(block.host_page / PAGE_BYTES) {
            let offset = PageRange::new(pages.start(), page.start()).bytes();
            let range = HostRange::new(HostAddr(host + offset), block.host_page);
            if !userfault.holds_huge_page(range)? {
                each(page);
            }
        }
    }
    Ok(())
}

/// Makes sure that nothing of what the source owes is there, and drops again
/// what is. All of it must be registered, and nobody may bring pages meanwhile.
///
/// # Errors
/// [`DestinationFailure::Drop`] when something is there still.
pub(super) fn drop_owed(memory: &Memory, installer: &Installer) -> Result<(), DestinationFailure> {
    if !memory.may_hold_more()? {
        return Ok(());
    }
    let mut pages = 0;
    for range in installer.missing() {
        for extent in memory.ram().layout().locate_range(range) {
            // One look for many small pages, and one for each huge page.
            let host_page = installer.host_page(extent.pages.start());
            let step = match host_page.len() {
                1 => extent.pages.len(),
                huge => huge,
            };
            for range in extent.pages.chunks(step) {
                if installer.holds(range)? {
                    memory.drop_stale(range)?;
                    pages += range.len();
                    if installer.holds(range)? {
                        return Err(DestinationFailure::Drop { range, cause: None });
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
