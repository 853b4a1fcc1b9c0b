//! Ranges of adjacent pages.

use std::fmt;

use crate::{PAGE_BYTES, Page};

/// Adjacent pages from `start` to `end` (exclusive).
///
/// `start <= end` always holds. Empty ranges are allowed at any position; two empty ranges at
/// different positions are not equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageRange {
    start: Page,
    end: Page,
}

impl PageRange {
    /// The empty range at page 0.
    pub const EMPTY: Self = Self {
        start: Page::new(0),
        end: Page::new(0),
    };

    /// Creates the range from `start` to `end` (exclusive); the empty range at `start` if `end` is
    /// less than `start`.
    #[must_use]
    pub const fn new(start: Page, end: Page) -> Self {
        if end.index() < start.index() {
            Self { start, end: start }
        } else {
            Self { start, end }
        }
    }

    /// Creates the range of `pages` pages that begins at `start`; clipped at the largest page
    /// number.
    #[must_use]
    pub const fn from_len(start: Page, pages: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(pages),
        }
    }

    /// Creates the range of one page.
    #[must_use]
    pub const fn one(page: Page) -> Self {
        Self::from_len(page, 1)
    }

    /// Returns the first page; the position of an empty range.
    #[must_use]
    pub const fn start(self) -> Page {
        self.start
    }

    /// Returns the page after the last one.
    #[must_use]
    pub const fn end(self) -> Page {
        self.end
    }

    /// Returns the number of pages.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.index() - self.start.index()
    }

    /// Returns the number of bytes; saturates at `u64::MAX` for ranges that no layout has.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.len().saturating_mul(PAGE_BYTES)
    }

    /// Whether the range is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start.index() == self.end.index()
    }

    /// Whether the range contains `page`.
    #[must_use]
    pub const fn contains(self, page: Page) -> bool {
        self.start.index() <= page.index() && page.index() < self.end.index()
    }

    /// Whether the range contains every page of `other`. True for an empty `other` at any position.
    #[must_use]
    pub const fn contains_range(self, other: Self) -> bool {
        other.is_empty()
            || (self.start.index() <= other.start.index() && other.end.index() <= self.end.index())
    }

    /// Returns the pages in both ranges; empty if there are none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Splits the range into the pages before `page` and those from `page` on. If `page` is
    /// outside, one part is empty and the other is the whole range.
    #[must_use]
    pub fn split_at(self, page: Page) -> (Self, Self) {
        let cut = page.clamp(self.start, self.end);
        (Self::new(self.start, cut), Self::new(cut, self.end))
    }

    /// Splits the range into parts of `pages` pages, in ascending order; the last one may be
    /// shorter. A size of 0 is treated as 1.
    #[must_use]
    pub const fn chunks(self, pages: u64) -> Chunks {
        Chunks {
            rest: self,
            pages: if pages == 0 { 1 } else { pages },
        }
    }

    /// Iterates over the pages, in ascending order.
    #[must_use]
    pub const fn iter(self) -> PageIter {
        PageIter { rest: self }
    }
}

impl IntoIterator for PageRange {
    type Item = Page;
    type IntoIter = PageIter;

    fn into_iter(self) -> PageIter {
        self.iter()
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageRange({}..{})", self.start.index(), self.end.index())
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {}..{}", self.start.index(), self.end.index())
    }
}

/// The parts of a range, from [`PageRange::chunks`].
#[derive(Clone, Debug)]
pub struct Chunks {
    rest: PageRange,
    pages: u64,
}

impl Iterator for Chunks {
    type Item = PageRange;

    fn next(&mut self) -> Option<PageRange> {
        if self.rest.is_empty() {
            return None;
        }
        let (piece, rest) = self
            .rest
            .split_at(self.rest.start.saturating_add(self.pages));
        self.rest = rest;
        Some(piece)
    }
}

/// The pages of a range, from [`PageRange::iter`].
#[derive(Clone, Debug)]
pub struct PageIter {
    rest: PageRange,
}

impl Iterator for PageIter {
    type Item = Page;

    fn next(&mut self) -> Option<Page> {
        if self.rest.is_empty() {
            return None;
        }
        let page = self.rest.start;
        self.rest.start = page.saturating_add(1);
        Some(page)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let pages = crate::usize_from(self.rest.len());
        (pages, Some(pages))
    }
}
