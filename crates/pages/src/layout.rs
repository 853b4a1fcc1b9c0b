//! The RAM blocks of a guest, and the flat page space they form.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::{PAGE_BYTES, Page, PageRange};

/// The host page sizes of a RAM block: 4 KiB, and the two huge page sizes of x86-64.
pub const HOST_PAGE_SIZES: [u64; 3] = [4 << 10, 2 << 20, 1 << 30];

/// Maximum number of pages in a layout: 64 TiB of RAM. With this limit no sum of pages or bytes
/// overflows, and a bitmap has at most 2 GiB.
pub const MAX_PAGES: u64 = 1 << 34;

/// Maximum number of RAM blocks in a layout.
pub const MAX_BLOCKS: usize = 1024;

/// Maximum number of guest ranges of one block.
pub const MAX_GUEST_RANGES: usize = 1024;

/// Maximum length of the name of a RAM block, in bytes.
pub const MAX_ID_BYTES: usize = 4096;

/// A part of a RAM block that is mapped at one guest address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestRange {
    /// Guest-physical address of its first byte.
    pub gpa: u64,
    /// Offset of its first byte in the block.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A block of memory that the VMM maps contiguously, usually one memory backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamBlock {
    /// Its name, the same on both sides of a migration.
    pub id: String,
    /// Its length in bytes: a multiple of `host_page`.
    pub bytes: u64,
    /// Its host page size in bytes: one of [`HOST_PAGE_SIZES`]. The two sides may use different
    /// sizes.
    pub host_page: u64,
    /// Where the block is mapped in the guest. May be incomplete or empty.
    pub guest: Vec<GuestRange>,
}

impl RamBlock {
    /// A block of which it is not known where it is mapped in the guest.
    pub fn new(id: impl Into<String>, bytes: u64, host_page: u64) -> Self {
        Self {
            id: id.into(),
            bytes,
            host_page,
            guest: Vec::new(),
        }
    }
}

/// The RAM blocks of a guest, one after another: the page space of a migration.
///
/// Each block begins at a host page boundary, so no host page spans two blocks.
///
/// # Example
///
/// ```
/// use hikkoshi_pages::{LayoutError, Page, RamBlock, RamLayout};
///
/// let layout = RamLayout::new(vec![
///     RamBlock::new("low", 3 << 12, 4 << 10),  // pages 0, 1, 2
///     RamBlock::new("high", 4 << 20, 2 << 20), // pages 3 to 1026, in two host pages
/// ])?;
/// assert_eq!(layout.pages(), 1027);
/// // Page 4 is the second page of the second block.
/// assert_eq!(layout.locate(Page::new(4)), Some((1, 4096)));
/// assert_eq!(layout.host_page_range(Page::new(4)).len(), 512);
/// # Ok::<(), LayoutError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamLayout {
    blocks: Vec<RamBlock>,
    /// The pages of each block; as long as `blocks`, ascending, without gaps.
    pages: Vec<PageRange>,
}

/// A part of a range that is in one RAM block, from [`RamLayout::locate_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of the block in the layout.
    pub block: usize,
    /// Offset of the part in the block, in bytes.
    pub offset: u64,
    /// The pages of the part; never empty.
    pub pages: PageRange,
}

impl RamLayout {
    /// Creates the layout of these blocks, in this order.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] if a block violates a rule of [`RamBlock`] or exceeds a limit of this
    /// module.
    pub fn new(blocks: Vec<RamBlock>) -> Result<Self, LayoutError> {
        if blocks.is_empty() {
            return Err(LayoutError::NoBlocks);
        }
        if blocks.len() > MAX_BLOCKS {
            return Err(LayoutError::TooManyBlocks {
                blocks: blocks.len(),
            });
        }
        let mut ids = BTreeSet::new();
        let mut pages = Vec::with_capacity(blocks.len());
        let mut end = Page::new(0);
        for block in &blocks {
            check(block)?;
            if !ids.insert(block.id.as_str()) {
                return Err(LayoutError::DuplicateId {
                    id: block.id.clone(),
                });
            }
            let range = PageRange::from_len(end, block.bytes / PAGE_BYTES);
            end = range.end();
            // Checked in each iteration, so the sum cannot overflow.
            if end.index() > MAX_PAGES {
                return Err(LayoutError::TooLarge {
                    id: block.id.clone(),
                });
            }
            pages.push(range);
        }
        Ok(Self { blocks, pages })
    }

    /// Returns the number of pages of all blocks.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.all().len()
    }

    /// Returns the number of bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.all().bytes()
    }

    /// Returns the range of all pages.
    #[must_use]
    pub fn all(&self) -> PageRange {
        PageRange::new(
            Page::new(0),
            self.pages.last().map_or(Page::new(0), |last| last.end()),
        )
    }

    /// Iterates over the blocks in order, each with its pages.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (&RamBlock, PageRange)> + Clone {
        self.blocks.iter().zip(self.pages.iter().copied())
    }

    /// Returns the block with this index and its pages.
    #[must_use]
    pub fn block(&self, index: usize) -> Option<(&RamBlock, PageRange)> {
        Some((self.blocks.get(index)?, *self.pages.get(index)?))
    }

    /// Returns the page that contains byte `offset` of a block; `None` if there is no such block or
    /// byte.
    #[must_use]
    pub fn page_at(&self, block: usize, offset: u64) -> Option<Page> {
        let (block, pages) = self.block(block)?;
        (offset < block.bytes).then(|| pages.start().saturating_add(offset / PAGE_BYTES))
    }

    /// Returns the index of the block that contains the page, and the page's offset in the block in
    /// bytes. `None` after the last page.
    #[must_use]
    pub fn locate(&self, page: Page) -> Option<(usize, u64)> {
        let block = self.pages.partition_point(|pages| pages.end() <= page);
        let pages = self.pages.get(block)?;
        let before = PageRange::new(pages.start(), page);
        Some((block, before.bytes()))
    }

    /// Splits `range` at block boundaries, in ascending order. Pages after the last one are
    /// ignored.
    #[must_use]
    pub fn locate_range(&self, range: PageRange) -> Extents<'_> {
        Extents {
            layout: self,
            rest: range.intersect(self.all()),
        }
    }

    /// Returns the host page that contains `page`; empty after the last page.
    #[must_use]
    pub fn host_page_range(&self, page: Page) -> PageRange {
        self.locate(page)
            .and_then(|(block, offset)| {
                let (block, pages) = self.block(block)?;
                let into = offset % block.host_page / PAGE_BYTES;
                let first = Page::new(page.index() - into);
                let whole = PageRange::from_len(first, block.host_page / PAGE_BYTES);
                Some(whole.intersect(pages))
            })
            .unwrap_or(PageRange::EMPTY)
    }

    /// Returns the smallest range of whole host pages that contains `range`, clipped to the layout;
    /// empty if no page of `range` is in the layout.
    #[must_use]
    pub fn round_out(&self, range: PageRange) -> PageRange {
        let range = range.intersect(self.all());
        if range.is_empty() {
            return PageRange::EMPTY;
        }
        let last = Page::new(range.end().index() - 1);
        PageRange::new(
            self.host_page_range(range.start()).start(),
            self.host_page_range(last).end(),
        )
    }
}

fn check(block: &RamBlock) -> Result<(), LayoutError> {
    if block.id.len() > MAX_ID_BYTES {
        return Err(LayoutError::IdTooLong {
            bytes: block.id.len(),
        });
    }
    let id = || block.id.clone();
    if !HOST_PAGE_SIZES.contains(&block.host_page) {
        return Err(LayoutError::HostPage {
            id: id(),
            host_page: block.host_page,
        });
    }
    if block.bytes == 0 {
        return Err(LayoutError::EmptyBlock { id: id() });
    }
    if !block.bytes.is_multiple_of(block.host_page) {
        return Err(LayoutError::PartialHostPage {
            id: id(),
            bytes: block.bytes,
            host_page: block.host_page,
        });
    }
    if block.guest.len() > MAX_GUEST_RANGES {
        return Err(LayoutError::TooManyGuestRanges {
            id: id(),
            ranges: block.guest.len(),
        });
    }
    for piece in &block.guest {
        let inside = piece
            .offset
            .checked_add(piece.bytes)
            .is_some_and(|end| end <= block.bytes);
        if piece.bytes == 0 || !inside || piece.gpa.checked_add(piece.bytes).is_none() {
            return Err(LayoutError::GuestRange {
                id: id(),
                gpa: piece.gpa,
                offset: piece.offset,
                bytes: piece.bytes,
            });
        }
    }
    Ok(())
}

/// The parts of a range, from [`RamLayout::locate_range`].
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    layout: &'a RamLayout,
    rest: PageRange,
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        if self.rest.is_empty() {
            return None;
        }
        let (block, offset) = self.layout.locate(self.rest.start())?;
        let (_, pages) = self.layout.block(block)?;
        let (part, rest) = self.rest.split_at(pages.end());
        self.rest = rest;
        Some(Extent {
            block,
            offset,
            pages: part,
        })
    }
}

/// Why a list of RAM blocks is not a valid layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There is no RAM block.
    #[error(
        "laying out the guest's RAM: there is no RAM block; a guest without RAM cannot be migrated"
    )]
    NoBlocks,
    /// There are more than [`MAX_BLOCKS`] blocks.
    #[error(
        "laying out the guest's RAM: {blocks} RAM blocks, at most {MAX_BLOCKS} are supported; give the guest fewer memory backends"
    )]
    TooManyBlocks {
        /// The number of blocks.
        blocks: usize,
    },
    /// A name is longer than [`MAX_ID_BYTES`].
    #[error(
        "laying out the guest's RAM: the name of a RAM block is {bytes} bytes long, at most {MAX_ID_BYTES} are supported; give its memory backend a shorter id"
    )]
    IdTooLong {
        /// The length of the name.
        bytes: usize,
    },
    /// Two blocks have the same name, so their pages cannot be distinguished.
    #[error(
        "laying out the guest's RAM: two RAM blocks are named {id:?}; give each memory backend a unique id"
    )]
    DuplicateId {
        /// The name.
        id: String,
    },
    /// A block is empty.
    #[error("laying out RAM block {id:?}: its size is 0; remove the empty memory backend")]
    EmptyBlock {
        /// The name of the block.
        id: String,
    },
    /// The host page size is not supported.
    #[error(
        "laying out RAM block {id:?}: host pages of {host_page} bytes are not supported; back it with pages of 4 KiB, 2 MiB or 1 GiB"
    )]
    HostPage {
        /// The name of the block.
        id: String,
        /// The size in bytes.
        host_page: u64,
    },
    /// The size of a block is not a multiple of its host page size.
    #[error(
        "laying out RAM block {id:?}: its size of {bytes} bytes is not a multiple of its host page size, {host_page} bytes; change the size"
    )]
    PartialHostPage {
        /// The name of the block.
        id: String,
        /// Its size in bytes.
        bytes: u64,
        /// The host page size in bytes.
        host_page: u64,
    },
    /// There is more RAM than [`MAX_PAGES`], counted up to and including the named block.
    #[error(
        "laying out RAM block {id:?}: up to this block the guest has more than 64 TiB of RAM, which is not supported"
    )]
    TooLarge {
        /// The block with which the sum exceeds the limit.
        id: String,
    },
    /// There are more than [`MAX_GUEST_RANGES`] guest ranges.
    #[error(
        "laying out RAM block {id:?}: it has {ranges} guest ranges, at most {MAX_GUEST_RANGES} are supported"
    )]
    TooManyGuestRanges {
        /// The name of the block.
        id: String,
        /// The number of guest ranges.
        ranges: usize,
    },
    /// A guest range is empty, or ends after its block or after the highest guest address.
    #[error(
        "laying out RAM block {id:?}: the guest range of {bytes} bytes at offset {offset:#x} and guest address {gpa:#x} is empty, or does not fit in the block or the address space"
    )]
    GuestRange {
        /// The name of the block.
        id: String,
        /// Guest-physical address.
        gpa: u64,
        /// Offset in the block, in bytes.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
}
