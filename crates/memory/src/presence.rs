//! Which pages are present: holes of a file, pages that hugetlbfs does not have, and pages that a
//! process has never had or has dropped are absent.

use hikkoshi_linux::{HostAddr, HostRange};
use hikkoshi_pages::{PAGE_BYTES, PageRange};
use hikkoshi_userfault::{RangeError, Userfault};
use thiserror::Error;

use crate::guest_ram::GuestRam;

/// It could not be found out which pages are present.
#[derive(Debug, Error)]
#[error("looking which pages of the guest's memory are here")]
pub enum PresenceError {
    /// The file system, or the process.
    File(#[from] std::io::Error),
    /// The userfaultfd.
    Userfault(#[from] RangeError),
}

/// Calls `each` with every range of absent pages: holes of tmpfs, huge pages that hugetlbfs does
/// not have, and private memory that its process does not have. Some of the ranges may be empty. A
/// page that is swapped out is present. `hosts` is the address of each block in the process that
/// `userfault` belongs to; all blocks must be registered there.
///
/// # Errors
/// When the file system, the process or the userfaultfd cannot be asked.
pub fn missing_pages(
    ram: &GuestRam,
    userfault: &Userfault,
    hosts: &[u64],
    mut each: impl FnMut(PageRange),
) -> Result<(), PresenceError> {
    let blocks = ram.layout().blocks().zip(ram.backings());
    for (((block, pages), backing), &host) in blocks.zip(hosts) {
        if block.host_page == PAGE_BYTES || backing.private().is_some() {
            let mut rest = pages;
            ram.data_runs(pages, |data| {
                each(PageRange::new(rest.start(), data.start()));
                rest = PageRange::new(data.end(), rest.end());
            })?;
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
