//! What a message may refer to.

use hikkoshi_pages::RamLayout;

use crate::framing::{MAX_CONTROL, MAX_OFFER};

/// What a frame may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The number of pages in the layout that both sides agreed on. 0 before
    /// that: then only control frames are valid.
    pub pages: u64,
}

impl Limits {
    /// The longest control message in bytes: only before the layout is known it may be an offer.
    #[must_use]
    pub const fn max_control(&self) -> usize {
        if self.pages == 0 {
            MAX_OFFER
        } else {
            MAX_CONTROL
        }
    }
}

impl From<&RamLayout> for Limits {
    fn from(layout: &RamLayout) -> Self {
        Self {
            pages: layout.pages(),
        }
    }
}
