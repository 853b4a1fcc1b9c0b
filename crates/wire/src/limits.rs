//! What a message may refer to.

use hikkoshi_pages::RamLayout;

/// What a frame may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of pages in the layout that both sides agreed on. 0 before
    /// that: then only control frames are valid.
    pub pages: u64,
}

impl From<&RamLayout> for Limits {
    fn from(layout: &RamLayout) -> Self {
        Self {
            pages: layout.pages(),
        }
    }
}
