//! One link's way through what is owed.
//!
//! A piece is claimed as it is found. A huge page of the destination is
//! finished before the link begins another, and left to the link that began it
//! as long as there is anything else: so no more huge pages are incomplete at
//! the destination than there are links and requests. Only small pages are read
//! ahead in between.

use std::sync::Arc;

use hikkoshi_pages::{Page, PageRange, RamLayout};

use super::Order;
use super::heat::HOTTEST;
use super::walk::Walk;
use crate::source::owed::Owed;

/// A link does not follow the guest where another is no more than so many
/// pages onwards: what comes next is being pushed already.
const NEAR: u64 = 64;

/// What a link should do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send these pages, which it has just claimed.
    Piece(PageRange),
    /// Nothing to read ahead, and background pushing has not begun.
    Nothing,
    /// Nothing is owed any more.
    Done,
}

/// How far hot pages have been pushed.
#[derive(Debug)]
struct Hot {
    /// Pages that were dirty at least so often.
    times: usize,
    /// The rest of the way, and what comes after it.
    parts: [PageRange; 2],
}

/// A link's cursors.
#[derive(Debug)]
pub(crate) struct Route {
    link: usize,
    order: Arc<Order>,
    owed: Arc<Owed>,
    /// The layout with the destination's host page sizes.
    destination: RamLayout,
    follow: bool,
    /// Where the link begins.
    start: Page,
    /// The stream whose turn it is to be read ahead.
    turn: usize,
    /// What is being read ahead.
    reading: PageRange,
    /// The huge page that was begun.
    under_way: PageRange,
    hot: Option<Hot>,
    walk: Walk,
}

impl Route {
    /// The way of number `link` of `links`, which begin spread over memory.
    pub(crate) fn new(
        (link, links): (usize, usize),
        order: &Arc<Order>,
        owed: &Arc<Owed>,
        destination: &RamLayout,
        follow: bool,
    ) -> Self {
        let all = destination.all();
        let start = u128::from(all.len()) * link as u128 / links.max(1) as u128;
        let start = Page::new(u64::try_from(start).unwrap_or(0));
        let start = destination.host_page_range(start).start();
        let mut route = Self {
            link,
            order: Arc::clone(order),
            owed: Arc::clone(owed),
            destination: destination.clone(),
            follow,
            start,
            turn: 0,
            reading: PageRange::EMPTY,
            under_way: PageRange::EMPTY,
            hot: None,
            walk: Walk::new(all, start),
        };
        if owed.has_heat() {
            route.hot = Some(route.hot_from(HOTTEST));
        }
        route
    }

    /// Claims the next piece, up to `max` pages; without `background` only what
    /// is to be read ahead, and the rest of a huge page that was begun.
    pub(crate) fn next(&mut self, max: u64, background: bool) -> Next {
        loop {
            if let Some(piece) = self.read_ahead(max) {
                return Next::Piece(piece);
            }
            if self.under_way.is_empty() {
                break;
            }
            match self.owed.claim(self.under_way, max) {
                Some(piece) => return Next::Piece(piece),
                // Whole; huge pages may be read ahead again.
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
            // Not all of a window may be owed, nor in one piece.
            if let Ok(piece) = self.search(self.reading, true, max, Owed::first) {
                self.reading = PageRange::new(piece.end(), self.reading.end());
                return Some(piece);
            }
            let free = self.under_way.is_empty();
            let destination = &self.destination;
            let wanted = |page| free || destination.host_page_range(page).len() <= 1;
            self.reading = self.order.ahead.take(&mut self.turn, max, wanted)?;
        }
    }

    /// Pushes pages that were dirtied often, the hottest first.
    fn hot(&mut self, max: u64) -> Option<PageRange> {
        loop {
            let Hot { times, parts } = self.hot.take()?;
            let found = self.search(parts[0], true, max, |owed, range| {
                owed.first_hot(times, range)
            });
            if let Ok(piece) = found {
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
                // Everything that is owed was dirty once.
                (times > 2).then(|| self.hot_from(times - 1))
            };
        }
    }

    /// All pages that were dirty at least `times`, from this link's beginning
    /// around to it.
    fn hot_from(&self, times: usize) -> Hot {
        let (before, after) = self.destination.all().split_at(self.start);
        Hot {
            times,
            parts: [after, before],
        }
    }

    fn walk(&mut self, max: u64) -> Option<PageRange> {
        if self.follow
            && let Some(page) = self.order.ahead.take_urgent()
        {
            let page = self.destination.host_page_range(page).start();
            if !self.order.is_taken(self.link, page, NEAR) {
                self.walk.go_to(page);
            }
        }
        while let Some(range) = self.walk.look() {
            match self.search(range, true, max, Owed::first) {
                Ok(piece) => {
                    self.walk.found(piece.end());
                    return Some(piece);
                }
                Err(skipped) => {
                    if skipped {
                        self.walk.skip();
                    }
                    self.walk.found_nothing(range);
                }
            }
        }
        // Nothing else is left: help another link with its huge page.
        let left = self.walk.skipped()?;
        self.search(left, false, max, Owed::first).ok()
    }

    /// Claims the first piece in `range` that `first` finds. Leaves huge pages
    /// that another link has begun to it, if `polite`; the error says whether
    /// it did.
    fn search(
        &mut self,
        range: PageRange,
        polite: bool,
        max: u64,
        first: impl Fn(&Owed, PageRange) -> Option<PageRange>,
    ) -> Result<PageRange, bool> {
        let mut skipped = false;
        let mut rest = range;
        while let Some(run) = first(&self.owed, rest) {
            let host = self.destination.host_page_range(run.start());
            let huge = host.len() > 1;
            if polite && huge && self.order.is_taken(self.link, host.start(), host.len()) {
                skipped = true;
                rest = PageRange::new(host.end(), rest.end());
                continue;
            }
            let claimed = if huge {
                self.owed.claim(host, max)
            } else {
                self.owed.claim(self.same_block(run), max)
            };
            if let Some(piece) = claimed {
                if huge {
                    self.under_way = host;
                }
                // While a huge page is under way, that is where the link is.
                if huge || self.under_way.is_empty() {
                    self.order.go_to(self.link, host.start());
                }
                return Ok(piece);
            }
            // Somebody was faster: what is owed after that?
            rest = PageRange::new(run.start(), rest.end());
        }
        Err(skipped)
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
mod tests {
    use super::*;
    use crate::source::order::streams::Advice;
    use hikkoshi_pages::{PAGE_BYTES, RamBlock};

    const HUGE: u64 = 512;

    /// Blocks of so many pages and so large host pages, in pages.
    fn layout(blocks: &[(u64, u64)]) -> RamLayout {
        let blocks = blocks
            .iter()
            .enumerate()
            .map(|(nth, &(pages, host))| RamBlock {
                id: nth.to_string(),
                bytes: pages * PAGE_BYTES,
                host_page: host * PAGE_BYTES,
                guest: Vec::new(),
            });
        RamLayout::new(blocks.collect()).unwrap()
    }

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    struct Links {
        order: Arc<Order>,
        owed: Arc<Owed>,
        routes: Vec<Route>,
    }

    fn links(layout: &RamLayout, owed: Owed, number: usize) -> Links {
        let (order, owed) = (Arc::new(Order::new(number)), Arc::new(owed));
        let routes = (0..number)
            .map(|link| Route::new((link, number), &order, &owed, layout, true))
            .collect();
        Links {
            order,
            owed,
            routes,
        }
    }

    fn all_owed(layout: &RamLayout) -> Owed {
        let owed = Owed::none(layout.pages(), false);
        owed.owe(layout.all());
        owed
    }

    fn pieces(route: &mut Route) -> Vec<PageRange> {
        std::iter::from_fn(|| match route.next(8, true) {
            Next::Piece(piece) => Some(piece),
            Next::Done => None,
            Next::Nothing => panic!("background has begun"),
        })
        .collect()
    }

    #[test]
    fn one_link_pushes_everything_once() {
        let layout = layout(&[(1030, 1), (2 * HUGE, HUGE), (5, 1)]);
        let mut links = links(&layout, all_owed(&layout), 1);
        let pieces = pieces(&mut links.routes[0]);
        let mut pages: Vec<_> = pieces.iter().flat_map(|piece| piece.iter()).collect();
        assert!(pages.is_sorted());
        pages.dedup();
        assert_eq!(pages.len() as u64, layout.pages());
        assert!(pieces.iter().all(|piece| piece.len() <= 8));
        assert_eq!(links.owed.count(), 0);
        assert_eq!(links.routes[0].next(8, true), Next::Done);
    }

    #[test]
    fn follows_the_guest_outwards() {
        let layout = layout(&[(2000, 1)]);
        let mut links = links(&layout, all_owed(&layout), 1);
        assert_eq!(links.routes[0].next(8, true), Next::Piece(range(0, 8)));
        links.order.urgent_upto(Page::new(1501));
        let pieces = pieces(&mut links.routes[0]);
        // Onwards to the end, then the nearest stretch before it, ….
        assert_eq!(pieces[0].start(), Page::new(1501));
        let turn = pieces
            .iter()
            .position(|piece| piece.end() == Page::new(2000))
            .unwrap();
        assert_eq!(pieces[turn + 1].start(), Page::new(1501 - 512));
        let pages: u64 = pieces.iter().map(|piece| piece.len()).sum();
        assert_eq!(pages, 2000 - 8);
        assert_eq!(links.owed.count(), 0);
    }

    #[test]
    fn the_hottest_pages_go_first() {
        let layout = layout(&[(1000, 1)]);
        let owed = Owed::none(1000, true);
        for (pages, times) in [
            (range(700, 704), 3),
            (range(100, 110), 2),
            (range(900, 905), 5),
        ] {
            for _ in 0..times {
                owed.written(pages);
            }
        }
        owed.owe(layout.all());
        // Not owed any more.
        assert_eq!(owed.claim(range(901, 902), 1), Some(range(901, 902)));
        let mut links = links(&layout, owed, 1);
        let pieces = pieces(&mut links.routes[0]);
        assert_eq!(
            pieces[..5],
            [
                range(700, 704),
                range(900, 901),
                range(902, 905),
                range(100, 108),
                range(108, 110)
            ]
        );
        assert_eq!(pieces[5], range(0, 8));
        assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<u64>(), 999);
    }

    #[test]
    fn read_ahead_comes_before_everything_and_without_background() {
        let layout = layout(&[(1000, 1)]);
        let mut links = links(&layout, all_owed(&layout), 2);
        assert_eq!(links.routes[0].next(8, false), Next::Nothing);
        let advice = Advice {
            stream: 2,
            onwards: range(501, 517),
            before: range(492, 500),
        };
        links.order.read_ahead(&advice);
        assert_eq!(links.routes[0].next(8, true), Next::Piece(range(501, 509)));
        assert_eq!(links.routes[1].next(8, false), Next::Piece(range(509, 517)));
        assert_eq!(links.routes[0].next(8, false), Next::Piece(range(492, 500)));
        assert_eq!(links.routes[0].next(8, false), Next::Nothing);
        assert_eq!(links.routes[0].next(8, true), Next::Piece(range(0, 8)));
    }

    #[test]
    fn links_begin_spread_and_keep_out_of_each_others_way() {
        let layout = layout(&[(4000, 1)]);
        let mut links = links(&layout, all_owed(&layout), 4);
        for (nth, route) in links.routes.iter_mut().enumerate() {
            let start = 1000 * nth as u64;
            let Next::Piece(piece) = route.next(8, true) else {
                panic!()
            };
            assert_eq!(piece.start(), Page::new(start));
        }
        // Link 3 is at 3000: what follows 2950 is being pushed already.
        links.order.urgent_upto(Page::new(2950));
        assert_eq!(links.routes[0].next(8, true), Next::Piece(range(8, 16)));
        links.order.urgent_upto(Page::new(1500));
        assert_eq!(
            links.routes[0].next(8, true),
            Next::Piece(range(1500, 1508))
        );
    }

    #[test]
    fn a_huge_page_is_finished_by_the_link_that_began_it() {
        let layout = layout(&[(3, 1), (4 * HUGE, HUGE), (100, 1)]);
        let mut links = links(&layout, all_owed(&layout), 2);
        let huge = |nth: u64| PageRange::from_len(Page::new(3 + nth * HUGE), HUGE);
        let mut begun: Vec<(usize, PageRange)> = Vec::new();
        let mut turn = 0;
        let mut done = [false; 2];
        while done != [true; 2] {
            turn = 1 - turn;
            // News of all kinds: they wait, or are small.
            if links.owed.count().is_multiple_of(50) {
                links.order.urgent_upto(huge(3).start());
                links.order.read_ahead(&Advice {
                    stream: turn,
                    onwards: huge(2),
                    before: range(0, 3),
                });
            }
            let Next::Piece(piece) = links.routes[turn].next(8, true) else {
                done[turn] = true;
                continue;
            };
            let host = layout.host_page_range(piece.start());
            if host.len() > 1 {
                assert!(host.contains_range(piece), "{piece:?}");
                begun.push((turn, host));
            }
        }
        assert_eq!(links.owed.count(), 0);
        for link in [0, 1] {
            let mut pages: Vec<_> = begun
                .iter()
                .filter(|(by, _)| *by == link)
                .map(|(_, host)| host.start())
                .collect();
            pages.dedup();
            let mut once = pages.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), pages.len(), "link {link} came back: {pages:?}");
        }
        // Shared, if at all, only the last one.
        let of = |link| {
            begun
                .iter()
                .filter(move |(by, _)| *by == link)
                .map(|(_, host)| *host)
        };
        let shared: Vec<_> = (0..4)
            .map(huge)
            .filter(|h| of(0).any(|o| o == *h) && of(1).any(|o| o == *h))
            .collect();
        assert!(shared.len() <= 1, "{shared:?}");
    }

    #[test]
    fn urgent_claims_get_in_between_the_pieces_of_a_huge_page() {
        let layout = layout(&[(2 * HUGE, HUGE)]);
        let mut links = links(&layout, all_owed(&layout), 1);
        assert_eq!(links.routes[0].next(8, true), Next::Piece(range(0, 8)));
        // A request for what is missing of it.
        let mut urgent = 0;
        while let Some(run) = links.owed.claim(range(8, HUGE), 16) {
            urgent += run.len();
        }
        assert_eq!(urgent, HUGE - 8);
        assert_eq!(links.routes[0].next(8, true), Next::Piece(range(512, 520)));
    }
}
