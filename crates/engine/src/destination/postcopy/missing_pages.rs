//! Owed pages that are not installed yet.
//!
//! A page leaves the set after it was installed. So a page that is not in the set can be filled
//! with zeros without overtaking the source's content.

use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_pages::{Page, PageBitmap, PageRange};

/// Owed pages that are not installed yet.
#[derive(Debug)]
pub(crate) struct MissingPages {
    pages: PageBitmap,
    count: AtomicU64,
}

impl MissingPages {
    /// An empty set for a guest of `pages` pages.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            pages: PageBitmap::empty(pages),
            count: AtomicU64::new(0),
        }
    }

    /// Adds `range`. Only before pages are received.
    pub(crate) fn add(&self, range: PageRange) {
        let new = self.pages.set_range(range);
        self.count.fetch_add(new, Ordering::AcqRel);
    }

    /// Pages in the set.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether any page of a host page is missing. The pages of a huge page arrive at once, but
    /// leave the set a word at a time, starting with the first.
    pub(crate) fn any(&self, range: PageRange) -> bool {
        self.pages.any(range)
    }

    /// The missing ranges, ascending. Whole host pages, while no page is being received.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = PageRange> + '_ {
        self.pages.runs(self.pages.all())
    }

    /// The missing ranges in `within`, ascending.
    pub(crate) fn ranges_in(&self, within: PageRange) -> impl Iterator<Item = PageRange> + '_ {
        self.pages.runs(within)
    }

    /// The set as a bitmap.
    pub(crate) fn bitmap(&self) -> &PageBitmap {
        &self.pages
    }

    /// Removes all pages that are not in `owed`: they hold zeros at the source. No page may be
    /// received meanwhile.
    ///
    /// # Errors
    /// The first page of `owed` that is not missing. The set is unchanged then.
    pub(crate) fn retain(&self, owed: &PageBitmap) -> Result<(), Page> {
        for run in owed.runs(owed.all()) {
            if self.pages.count_range(run) < run.len() {
                return Err(run.start());
            }
        }
        for run in self.ranges().collect::<Vec<_>>() {
            let mut rest = run;
            while !rest.is_empty() {
                let next = owed.runs(rest).next();
                let end = next.map_or(rest.end(), |next| next.start());
                let removed = self.clear(PageRange::new(rest.start(), end));
                self.subtract(removed);
                rest = PageRange::new(next.map_or(rest.end(), |next| next.end()), rest.end());
            }
        }
        Ok(())
    }

    /// Removes `range`; returns how many of its pages were missing. The caller passes that number
    /// to [`subtract`](Self::subtract) when it has recorded everything about these pages.
    pub(crate) fn clear(&self, range: PageRange) -> u64 {
        self.pages.clear_range(range)
    }

    /// Reduces the count by `removed`; `true` when no page is missing any more. Exactly one caller
    /// gets `true`, and all callers have recorded everything about their pages by then.
    pub(crate) fn subtract(&self, removed: u64) -> bool {
        removed > 0 && self.count.fetch_sub(removed, Ordering::AcqRel) == removed
    }
}
