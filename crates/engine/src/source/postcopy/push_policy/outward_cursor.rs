//! Outwards from a link's first page: first all pages after it, then those before it.

use hikkoshi_pages::{Page, PageRange};

/// The pages before the start are searched in stretches of this many pages, the
/// nearest stretch first; within a stretch in ascending order.
const STRETCH: u64 = 512;

/// A link's cursor over all pages: the caller reports what it found, the cursor
/// returns where to look next.
#[derive(Debug)]
pub(crate) struct OutwardCursor {
    /// Every page outside of it has been sent. (No page becomes unsent in post-copy.)
    remaining: PageRange,
    onwards: Page,
    /// The pages before this one, in `remaining`, have not been searched yet.
    before: Page,
    /// Unsent pages were left to another link.
    skipped: bool,
}

impl OutwardCursor {
    pub(crate) fn new(all: PageRange, start: Page) -> Self {
        let start = start.clamp(all.start(), all.end());
        Self {
            remaining: all,
            onwards: start,
            before: start,
            skipped: false,
        }
    }

    /// Reports that unsent pages were left to another link: the search is not
    /// complete.
    pub(crate) fn skip(&mut self) {
        self.skipped = true;
    }

    /// Where to look for the first unsent page; `None` after everything was searched,
    /// except skipped pages.
    pub(crate) fn look(&self) -> Option<PageRange> {
        let onwards = PageRange::new(self.onwards, self.remaining.end());
        if !onwards.is_empty() {
            return Some(onwards);
        }
        let from = Page::new(self.before.index().saturating_sub(STRETCH));
        let before = PageRange::new(from.max(self.remaining.start()), self.before);
        (!before.is_empty()).then_some(before)
    }

    /// Reports that unsent pages were found in the result of [`look`](Self::look), and
    /// that all pages before `end` there have been sent.
    pub(crate) fn found(&mut self, end: Page) {
        if !self.onwards_done() {
            self.onwards = end.clamp(self.onwards, self.remaining.end());
        }
    }

    /// Reports that the result of [`look`](Self::look) contains no unsent pages, or
    /// only skipped ones.
    pub(crate) fn found_nothing(&mut self, looked: PageRange) {
        if self.onwards_done() {
            self.before = looked.start();
        } else {
            self.onwards = self.remaining.end();
        }
        // Everything from `before` on has been searched now.
        if !self.skipped {
            self.remaining = PageRange::new(self.remaining.start(), self.before);
            self.onwards = self.remaining.end();
        }
    }

    /// The range that contains the skipped pages, if there are any.
    pub(crate) fn skipped(&self) -> Option<PageRange> {
        self.skipped.then_some(self.remaining)
    }

    fn onwards_done(&self) -> bool {
        self.onwards >= self.remaining.end()
    }
}
