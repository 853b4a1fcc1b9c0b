//! Page numbers, and the page size.

use std::fmt;

/// Size of a page in bytes: the granularity of dirty logging, of page requests and of sending.
pub const PAGE_SIZE: usize = 4096;

/// [`PAGE_SIZE`] for arithmetic on addresses, offsets and file sizes.
pub const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// The number of a page in the migration's flat page space: all RAM blocks one after another, in
/// the order of the layout (see [`RamLayout`]).
///
/// It is neither a guest frame number nor an offset in a file.
///
/// [`RamLayout`]: crate::RamLayout
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Page(u64);

impl Page {
    /// Creates the page with this number. Whether it exists depends on the layout.
    #[must_use]
    pub const fn new(index: u64) -> Self {
        Self(index)
    }

    /// Returns the number.
    #[must_use]
    pub const fn index(self) -> u64 {
        self.0
    }

    /// Returns the page `pages` after this one; saturates at the largest number.
    #[must_use]
    pub const fn saturating_add(self, pages: u64) -> Self {
        Self(self.0.saturating_add(pages))
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({})", self.0)
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// Converts a `u64` to a `usize` without loss: the crate builds for 64-bit hosts only.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "lib.rs rejects targets with a usize of other than 64 bits"
)]
pub const fn usize_from(value: u64) -> usize {
    value as usize
}
