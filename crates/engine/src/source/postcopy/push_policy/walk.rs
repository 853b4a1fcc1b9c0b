//! Outwards from a place: onwards to the end first, then what is before it.

use hikkoshi_pages::{Page, PageRange};

/// What is before a place is searched in stretches of this many pages, the
/// nearest one first; within one, pages go in ascending order.
const STRETCH: u64 = 512;

/// A link's way through all pages. It is told what was found, and knows where
/// to look next.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Outside of it nothing is owed any more. (Nothing comes to be owed in
    /// post-copy.)
    remaining: PageRange,
    onwards: Page,
    /// What is before this, inside `left`, has not been searched yet.
    before: Page,
    /// Something owed was left to another link.
    skipped: bool,
}

impl Walk {
    pub(crate) fn new(all: PageRange, start: Page) -> Self {
        let mut walk = Self {
            remaining: all,
            onwards: start,
            before: start,
            skipped: false,
        };
        walk.move_to(start);
        walk
    }

    /// Goes on from `page`.
    pub(crate) fn move_to(&mut self, page: Page) {
        let page = page.clamp(self.remaining.start(), self.remaining.end());
        (self.onwards, self.before) = (page, page);
        self.skipped = false;
    }

    /// Something owed was left to another link: the search is not complete.
    pub(crate) fn skip(&mut self) {
        self.skipped = true;
    }

    /// Where to look for the first owed page; `None` when all was searched,
    /// but for what was skipped.
    pub(crate) fn look(&self) -> Option<PageRange> {
        let onwards = PageRange::new(self.onwards, self.remaining.end());
        if !onwards.is_empty() {
            return Some(onwards);
        }
        let from = Page::new(self.before.index().saturating_sub(STRETCH));
        let before = PageRange::new(from.max(self.remaining.start()), self.before);
        (!before.is_empty()).then_some(before)
    }

    /// Something owed was found where [`look`](Self::look) said, and nothing
    /// before `end` is owed there any more.
    pub(crate) fn found(&mut self, end: Page) {
        if !self.onwards_done() {
            self.onwards = end.clamp(self.onwards, self.remaining.end());
        }
    }

    /// Nothing is owed in what [`look`](Self::look) gave, or it was skipped.
    pub(crate) fn found_nothing(&mut self, looked: PageRange) {
        if self.onwards_done() {
            self.before = looked.start();
        } else {
            self.onwards = self.remaining.end();
        }
        // From `before` on, everything has been searched by now.
        if !self.skipped {
            self.remaining = PageRange::new(self.remaining.start(), self.before);
            self.onwards = self.remaining.end();
        }
    }

    /// What was skipped is somewhere in here, if anything was.
    pub(crate) fn skipped(&self) -> Option<PageRange> {
        self.skipped.then_some(self.remaining)
    }

    fn onwards_done(&self) -> bool {
        self.onwards >= self.remaining.end()
    }
}
