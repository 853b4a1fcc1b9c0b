//! One link's order through the unsent pages.
//!
//! A piece is claimed when it is found. A link finishes a huge page of the
//! destination before it begins another one, and leaves a huge page to the link that
//! began it while there are other pages. So at most as many huge pages are incomplete
//! at the destination as there are links and requests. Only small pages are read
//! ahead in between.

use std::sync::Arc;

use hikkoshi_pages::{Page, PageRange, RamLayout};

use crate::source::postcopy::push_policy::PushPolicy;
use crate::source::postcopy::push_policy::walk::Walk;
use crate::source::unsent::{HOTTEST, UnsentPages};

/// A link does not follow the guest to a page if another link is at most this many
/// pages further: the next pages are already being pushed.
const NEAR: u64 = 64;

/// What a link does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send these pages, which were just claimed.
    Piece(PageRange),
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
    piece: Option<PageRange>,
    /// Whether a huge page before that was left to another link.
    skipped: bool,
}

/// The cursors of one link.
#[derive(Debug)]
pub(crate) struct Route {
    link: usize,
    policy: Arc<PushPolicy>,
    unsent: Arc<UnsentPages>,
    /// The layout with the destination's host page sizes.
    destination: RamLayout,
    follow: bool,
    /// The first page of this link.
    start: Page,
    /// The next stream to read ahead.
    turn: usize,
    /// The window that is being read ahead.
    reading: PageRange,
    /// The huge page that this link has begun.
    under_way: PageRange,
    hot: Option<Hot>,
    walk: Walk,
}

impl Route {
    /// The route of number `link` of `links`. Their first pages are spread over
    /// memory.
    pub(crate) fn new(
        (link, links): (usize, usize),
        policy: &Arc<PushPolicy>,
        unsent: &Arc<UnsentPages>,
        destination: &RamLayout,
        follow: bool,
    ) -> Self {
        let all = destination.all();
        let start = u128::from(all.len()) * link as u128 / links.max(1) as u128;
        let start = Page::new(u64::try_from(start).unwrap_or(0));
        let start = destination.host_page_range(start).start();
        let mut route = Self {
            link,
            policy: Arc::clone(policy),
            unsent: Arc::clone(unsent),
            destination: destination.clone(),
            follow,
            start,
            turn: 0,
            reading: PageRange::EMPTY,
            under_way: PageRange::EMPTY,
            hot: None,
            walk: Walk::new(all, start),
        };
        if unsent.counts_writes() {
            route.hot = Some(route.hot_from(HOTTEST));
        }
        route
    }

    /// Claims the next piece, up to `max` pages. Without `background` only pages to
    /// read ahead, and the rest of a huge page that was begun.
    pub(crate) fn next(&mut self, max: u64, background: bool) -> Next {
        loop {
            if let Some(piece) = self.read_ahead(max) {
                return Next::Piece(piece);
            }
            if self.under_way.is_empty() {
                break;
            }
            match self.unsent.claim(self.under_way, max) {
                Some(piece) => return Next::Piece(piece),
                // Complete: huge pages may be read ahead again.
                None => self.under_way = PageRange::EMPTY,
            }
        }
        if !background {
            return Next::Nothing;
        }
        self.hot(max)
            .or_else(|| self.walk(max))
            .map_or(Next::Done, Next::Piece)
    }

    fn read_ahead(&mut self, max: u64) -> Option<PageRange> {
        loop {
            // The unsent pages of a window may be only a part of it, in several pieces.
            if let Some(piece) = self
                .search(self.reading, true, max, UnsentPages::first)
                .piece
            {
                self.reading = PageRange::new(piece.end(), self.reading.end());
                return Some(piece);
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
            if let Some(piece) = found.piece {
                let rest = PageRange::new(piece.start().max(parts[0].start()), parts[0].end());
                self.hot = Some(Hot {
                    times,
                    parts: [rest, parts[1]],
                });
                return Some(piece);
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

    fn walk(&mut self, max: u64) -> Option<PageRange> {
        if self.follow
            && let Some(page) = self.policy.read_ahead.take_urgent()
        {
            let page = self.destination.host_page_range(page).start();
            if !self.policy.is_taken(self.link, page, NEAR) {
                self.walk.move_to(page);
            }
        }
        while let Some(range) = self.walk.look() {
            let found = self.search(range, true, max, UnsentPages::first);
            // Also if a piece was found after it.
            if found.skipped {
                self.walk.skip();
            }
            match found.piece {
                Some(piece) => {
                    self.walk.found(piece.end());
                    return Some(piece);
                }
                None => self.walk.found_nothing(range),
            }
        }
        // There are no other pages: help another link with its huge page.
        let left = self.walk.skipped()?;
        self.search(left, false, max, UnsentPages::first).piece
    }

    /// Claims the first piece in `range` that `first` finds. If `polite`, leaves a huge
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
            if polite && huge && self.policy.is_taken(self.link, host.start(), host.len()) {
                skipped = true;
                rest = PageRange::new(host.end(), rest.end());
                continue;
            }
            let claimed = if huge {
                self.unsent.claim(host, max)
            } else {
                self.unsent.claim(self.same_block(run), max)
            };
            if let Some(piece) = claimed {
                if huge {
                    self.under_way = host;
                }
                // While a huge page is under way, that is where the link is.
                if huge || self.under_way.is_empty() {
                    self.policy.set_position(self.link, host.start());
                }
                return Found {
                    piece: Some(piece),
                    skipped,
                };
            }
            // Another thread claimed it first: search after it.
            rest = PageRange::new(run.start(), rest.end());
        }
        Found {
            piece: None,
            skipped,
        }
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
