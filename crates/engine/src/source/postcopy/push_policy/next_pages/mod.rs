//! One link's order through the unsent pages.
//!
//! A run is claimed when it is found. A link finishes a huge page of the
//! destination before it begins another one, and leaves a huge page to the link that
//! began it while there are other pages. So at most as many huge pages are incomplete
//! at the destination as there are links and requests. Only small pages are read
//! ahead in between.

use std::sync::Arc;

use hikkoshi_pages::{Page, PageRange, RamLayout};

use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::postcopy::push_policy::outward_cursor::OutwardCursor;
use crate::source::unsent::{HOTTEST, UnsentPages};

/// What a link does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send these pages, which were just claimed.
    Send(PageRange),
    /// Nothing: there are no pages to read ahead, and background pages are held back.
    Nothing,
    /// Nothing any more: every page has been claimed.
    Done,
}

/// The progress of pushing hot pages.
#[derive(Debug)]
struct Hot {
    /// Pages that were dirty at least this often.
    times: usize,
    /// The range that is being searched, and the one after it.
    parts: [PageRange; 2],
}

/// The result of a search.
#[derive(Debug)]
struct Found {
    /// The claimed pages.
    run: Option<PageRange>,
    /// Whether a huge page before that was left to another link.
    skipped: bool,
}

/// The cursors of one link.
#[derive(Debug)]
pub(crate) struct NextPages {
    link: usize,
    policy: Arc<PushPolicy>,
    unsent: Arc<UnsentPages>,
    /// The layout with the destination's host page sizes.
    destination: RamLayout,
    /// The first page of this link.
    start: Page,
    /// The next stream to read ahead.
    turn: usize,
    /// The window that is being read ahead.
    reading: PageRange,
    /// The huge page that this link has begun.
    under_way: PageRange,
    hot: Option<Hot>,
    cursor: OutwardCursor,
}

impl NextPages {
    /// The cursors of number `link` of `links`. Their first pages are spread over
    /// memory.
    pub(crate) fn new(
        (link, links): (usize, usize),
        policy: &Arc<PushPolicy>,
        unsent: &Arc<UnsentPages>,
        destination: &RamLayout,
    ) -> Self {
        let all = destination.all();
        let start = u128::from(all.len()) * link as u128 / links.max(1) as u128;
        let start = Page::new(u64::try_from(start).unwrap_or(0));
        let start = destination.host_page_range(start).start();
        let mut next_pages = Self {
            link,
            policy: Arc::clone(policy),
            unsent: Arc::clone(unsent),
            destination: destination.clone(),
            start,
            turn: 0,
            reading: PageRange::EMPTY,
            under_way: PageRange::EMPTY,
            hot: None,
            cursor: OutwardCursor::new(all, start),
        };
        if unsent.counts_writes() {
            next_pages.hot = Some(next_pages.hot_from(HOTTEST));
        }
        next_pages
    }

    /// Claims the next run, up to `max` pages. Without `background` only pages to
    /// read ahead, and the rest of a huge page that was begun.
    pub(crate) fn next(&mut self, max: u64, background: bool) -> Next {
        loop {
            if let Some(run) = self.read_ahead(max) {
                return Next::Send(run);
            }
            if self.under_way.is_empty() {
                break;
            }
            match self.unsent.claim(self.under_way, max) {
                Some(run) => return Next::Send(run),
                // Complete: huge pages may be read ahead again.
                None => self.under_way = PageRange::EMPTY,
            }
        }
        if !background {
            return Next::Nothing;
        }
        self.hot(max)
            .or_else(|| self.outwards(max))
            .map_or(Next::Done, Next::Send)
    }

    fn read_ahead(&mut self, max: u64) -> Option<PageRange> {
        loop {
            // The unsent pages of a window may be only a part of it, in several runs.
            if let Some(run) = self.search(self.reading, true, max, UnsentPages::first).run {
                self.reading = PageRange::new(run.end(), self.reading.end());
                return Some(run);
            }
            let free = self.under_way.is_empty();
            let destination = &self.destination;
            let wanted = |page| free || destination.host_page_range(page).len() <= 1;
            self.reading = self.policy.read_ahead.take(&mut self.turn, max, wanted)?;
        }
    }

    /// Pushes pages that were dirtied often, the hottest first.
    fn hot(&mut self, max: u64) -> Option<PageRange> {
        loop {
            let Hot { times, parts } = self.hot.take()?;
            let found = self.search(parts[0], true, max, |unsent, range| {
                unsent.first_hot(times, range)
            });
            if let Some(run) = found.run {
                let rest = PageRange::new(run.start().max(parts[0].start()), parts[0].end());
                self.hot = Some(Hot {
                    times,
                    parts: [rest, parts[1]],
                });
                return Some(run);
            }
            self.hot = if !parts[1].is_empty() {
                Some(Hot {
                    times,
                    parts: [parts[1], PageRange::EMPTY],
                })
            } else {
                // Every unsent page was dirty at least once.
                (times > 2).then(|| self.hot_from(times - 1))
            };
        }
    }

    /// A search for pages that were dirty at least `times`: from this link's first page
    /// to the end, then from the start of memory.
    fn hot_from(&self, times: usize) -> Hot {
        let (before, after) = self.destination.all().split_at(self.start);
        Hot {
            times,
            parts: [after, before],
        }
    }

    fn outwards(&mut self, max: u64) -> Option<PageRange> {
        while let Some(range) = self.cursor.look() {
            let found = self.search(range, true, max, UnsentPages::first);
            // Also if a run was found after it.
            if found.skipped {
                self.cursor.skip();
            }
            match found.run {
                Some(run) => {
                    self.cursor.found(run.end());
                    return Some(run);
                }
                None => self.cursor.found_nothing(range),
            }
        }
        // There are no other pages: help another link with its huge page.
        let left = self.cursor.skipped()?;
        self.search(left, false, max, UnsentPages::first).run
    }

    /// Claims the first run in `range` that `first` finds. If `polite`, leaves a huge
    /// page to the link that has begun it.
    fn search(
        &mut self,
        range: PageRange,
        polite: bool,
        max: u64,
        first: impl Fn(&UnsentPages, PageRange) -> Option<PageRange>,
    ) -> Found {
        let mut skipped = false;
        let mut rest = range;
        while let Some(run) = first(&self.unsent, rest) {
            let host = self.destination.host_page_range(run.start());
            let huge = host.len() > 1;
            if polite && huge && self.policy.is_taken(self.link, host) {
                skipped = true;
                rest = PageRange::new(host.end(), rest.end());
                continue;
            }
            let claimed = if huge {
                self.unsent.claim(host, max)
            } else {
                self.unsent.claim(self.same_block(run), max)
            };
            if let Some(run) = claimed {
                if huge {
                    self.under_way = host;
                    self.policy.begin(self.link, host);
                }
                return Found {
                    run: Some(run),
                    skipped,
                };
            }
            // Another thread claimed it first: search after it.
            rest = PageRange::new(run.start(), rest.end());
        }
        Found { run: None, skipped }
    }

    /// The part of `run` that lies in its first page's RAM block: the next one
    /// may have huge pages.
    fn same_block(&self, run: PageRange) -> PageRange {
        self.destination
            .locate_range(run)
            .next()
            .map_or(run, |extent| extent.pages)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
