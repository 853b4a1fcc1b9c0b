//! What a message may refer to.

use hikkoshi_pages::RamLayout;

/// The longest encoded control message about a guest whose layout both sides
/// know, in bytes: 1 MiB.
pub const MAX_CONTROL: usize = 1 << 20;

/// The longest encoded control message before that, in bytes: 4 MiB. It is the
/// offer of a guest with a thousand disks and hundreds of processors, or of a
/// domain with a hundred snapshots.
pub const MAX_OFFER: usize = 4 << 20;

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
