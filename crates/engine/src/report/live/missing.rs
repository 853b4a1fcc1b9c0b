//! What is read of missing pages.

use std::fmt::Debug;

use hikkoshi_pages::{Page, PageRange};

/// The pages that are missing at the destination, at the source: that are not sent yet; in
/// post-copy.
pub(crate) trait MissingRanges: Debug + Send + Sync {
    /// Calls `each` with each range of them.
    fn each_missing(&self, each: &mut dyn FnMut(PageRange));
}

/// Page requests without an answer, and missing pages: at the destination, in post-copy.
pub(crate) trait MissingAndRequested: MissingRanges {
    /// Pages that are not installed yet.
    fn missing_pages(&self) -> u64;

    /// Calls `each` with the first page of each host page that is requested and has not arrived.
    fn each_waiting(&self, each: &mut dyn FnMut(Page));
}
