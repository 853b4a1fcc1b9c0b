//! Outwards from a link's first page: first all pages after it, then those before it.

use hikkoshi_pages::{Page, PageRange};

/// The pages before the start are searched in stretches of this many pages, the
/// nearest stretch first; within a stretch in ascending order. So a link does not come
/// to where the link before it is until little else is left.
const STRETCH: u64 = 512;

/// A link's cursor over all pages: the caller reports what it found, the cursor
/// returns where to look next. No page becomes unsent in post-copy.
#[derive(Debug)]
pub(crate) struct OutwardCursor {
    all: PageRange,
    /// The pages after the start that have not been searched yet.
    onwards: PageRange,
    /// The pages before the start that have not been searched yet.
    before: PageRange,
    /// Unsent pages were left to another link.
    skipped: bool,
}

impl OutwardCursor {
    pub(crate) fn new(all: PageRange, start: Page) -> Self {
        let (before, onwards) = all.split_at(start);
        Self {
            all,
            onwards,
            before,
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
        if !self.onwards.is_empty() {
            return Some(self.onwards);
        }
        let (start, end) = (self.before.start(), self.before.end());
        let from = Page::new(end.index().saturating_sub(STRETCH)).max(start);
        (!self.before.is_empty()).then(|| PageRange::new(from, end))
    }

    /// Reports that unsent pages were found in the result of [`look`](Self::look), and
    /// that all pages before `end` there have been sent.
    pub(crate) fn found(&mut self, end: Page) {
        (_, self.onwards) = self.onwards.split_at(end);
    }

    /// Reports that the result of [`look`](Self::look) contains no unsent pages, or
    /// only skipped ones.
    pub(crate) fn found_nothing(&mut self, looked: PageRange) {
        if self.onwards.is_empty() {
            (self.before, _) = self.before.split_at(looked.start());
        }
        self.onwards = PageRange::EMPTY;
    }

    /// The range that contains the skipped pages, if there are any.
    pub(crate) fn skipped(&self) -> Option<PageRange> {
        self.skipped.then_some(self.all)
    }
}
