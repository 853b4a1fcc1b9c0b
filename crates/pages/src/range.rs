//! Adjacent pages.

use std::fmt;

use crate::{PAGE_BYTES, Page};

/// Adjacent pages, from `start` up to but not including `end`.
///
/// `start <= end` always holds. Empty ranges are allowed and may lie anywhere;
/// two empty ranges at different places are not equal.
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

    /// The pages from `start` up to but not including `end`; the empty range
    /// at `start` if `end` lies before it.
    #[must_use]
    pub const fn new(start: Page, end: Page) -> Self {
        if end.index() < start.index() {
            Self { start, end: start }
        } else {
            Self { start, end }
        }
    }

    /// `pages` pages from `start` on; cut off at the last page number there is.
    #[must_use]
    pub const fn from_len(start: Page, pages: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(pages),
        }
    }

    /// The range of one page.
    #[must_use]
    pub const fn one(page: Page) -> Self {
        Self::from_len(page, 1)
    }

    /// The first page, if there is one; the place of an empty range.
    #[must_use]
    pub const fn start(self) -> Page {
        self.start
    }

    /// The page after the last.
    #[must_use]
    pub const fn end(self) -> Page {
        self.end
    }

    /// Number of pages.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.index() - self.start.index()
    }

    /// Number of bytes; at most `u64::MAX` for ranges that no layout has.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.len().saturating_mul(PAGE_BYTES)
    }

    /// Whether there is no page in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.start.index() == self.end.index()
    }

    /// Whether `page` is one of its pages.
    #[must_use]
    pub const fn contains(self, page: Page) -> bool {
        self.start.index() <= page.index() && page.index() < self.end.index()
    }

    /// Whether every page of `other` is one of its pages. True for an empty
    /// `other`, wherever that lies.
    #[must_use]
    pub const fn contains_range(self, other: Self) -> bool {
        other.is_empty()
            || (self.start.index() <= other.start.index() && other.end.index() <= self.end.index())
    }

    /// The pages in both; empty if there are none.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The pages before `page` and those from `page` on. If `page` lies
    /// outside, one of the two is empty and the other is everything.
    #[must_use]
    pub fn split_at(self, page: Page) -> (Self, Self) {
        let cut = page.clamp(self.start, self.end);
        (Self::new(self.start, cut), Self::new(cut, self.end))
    }

    /// Pieces of `pages` pages, ascending; the last may be shorter. A size of
    /// 0 is taken as 1.
    #[must_use]
    pub const fn chunks(self, pages: u64) -> Chunks {
        Chunks {
            rest: self,
            pages: if pages == 0 { 1 } else { pages },
        }
    }

    /// Its pages, ascending.
    #[must_use]
    pub const fn iter(self) -> Pages {
        Pages { rest: self }
    }
}

impl IntoIterator for PageRange {
    type Item = Page;
    type IntoIter = Pages;

    fn into_iter(self) -> Pages {
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

/// The pieces of a range, from [`PageRange::chunks`].
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
pub struct Pages {
    rest: PageRange,
}

impl Iterator for Pages {
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
