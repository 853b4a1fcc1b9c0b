//! What is in the RAM files: with post-copy that is what has been received.

use hikkoshi_faults::{HostAddr, HostRange, RangeError, Userfault};
use hikkoshi_pages::{PAGE_BYTES, PageRange};
use thiserror::Error;

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
