//! A dirty log of some of the memory: [`PartialLog`].

use std::error::Error;

use hikkoshi_dirty::{DirtyLog, PagemapLog};
use hikkoshi_pages::PageRange;

/// A log that records writes only to memory that it was told to track. Other writes cost the guest
/// nothing.
pub trait PartialLog: DirtyLog {
    /// Makes the pages of `range` clean, and records writes to them from now on. The range consists
    /// of whole huge pages, if the block has them.
    ///
    /// # Errors
    ///
    /// The range cannot be tracked, or only a part of it.
    fn track(&self, range: PageRange) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl PartialLog for PagemapLog {
    fn track(&self, range: PageRange) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.protect(range)?)
    }
}
