//! Models: loom runs each through every interleaving and every outcome that
//! the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p hikkoshi-engine --lib model
//! ```

#![cfg(test)]
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use hikkoshi_pages::{PAGE_BYTES, Page, PageRange, RamBlock, RamLayout};
use loom::thread;

use crate::source::postcopy::push_policy::access_streams::Advice;
use crate::source::postcopy::push_policy::{Next, PushPolicy, Route};
use crate::source::unsent::UnsentPages;

const PAGES: u64 = 12;

fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

fn layout() -> RamLayout {
    let block = RamBlock {
        id: "ram".into(),
        bytes: PAGES * PAGE_BYTES,
        host_page: PAGE_BYTES,
        guest: Vec::new(),
    };
    RamLayout::new(vec![block]).unwrap()
}

fn owed(pages: PageRange) -> Arc<UnsentPages> {
    let owed = UnsentPages::none(PAGES, false);
    owed.owe(pages);
    Arc::new(owed)
}

fn advice(onwards: PageRange, before: PageRange) -> Advice {
    Advice {
        stream: 0,
        onwards,
        before,
    }
}

/// What the urgent thread does with a request: claims, sends, and tells.
fn answer(owed: &UnsentPages, order: &PushPolicy, page: u64, ahead: &Advice) -> Vec<PageRange> {
    let sent = owed.claim(range(page, page + 1), 1);
    order.urgent_upto(Page::new(page + 1));
    order.read_ahead(ahead);
    sent.into_iter().collect()
}

/// Pushes until nothing is owed.
fn push(route: &mut Route, max: u64) -> Vec<PageRange> {
    std::iter::from_fn(|| match route.next(max, true) {
        Next::Piece(piece) => Some(piece),
        Next::Done => None,
        Next::Nothing => panic!("background has begun"),
    })
    .collect()
}

/// Each page of `all` was sent once.
fn check(owed: &UnsentPages, all: PageRange, sent: &[Vec<PageRange>]) {
    let mut pages: Vec<_> = sent.iter().flatten().flat_map(|run| run.iter()).collect();
    pages.sort();
    assert!(pages.iter().copied().eq(all.iter()), "{sent:?}");
    assert_eq!(owed.count(), 0);
}

#[test]
fn a_page_is_sent_once_whatever_is_hinted() {
    loom::model(|| {
        let all = range(4, 7);
        let (order, owed) = (Arc::new(PushPolicy::new(1)), owed(all));
        let pushing = {
            let mut route = Route::new((0, 1), &order, &owed, &layout(), true);
            thread::spawn(move || push(&mut route, 2))
        };
        let ahead = advice(range(6, 8), range(4, 5));
        let urgent = answer(&owed, &order, 5, &ahead);
        let pushed = pushing.join().unwrap();
        check(&owed, all, &[urgent, pushed]);
    });
}

#[test]
fn two_links_and_a_request_share_the_pages() {
    let mut model = loom::model::Builder::new();
    // All orders of three threads would take hours.
    model.preemption_bound = Some(1);
    model.check(|| {
        let all = range(5, 7);
        let (order, owed) = (Arc::new(PushPolicy::new(2)), owed(all));
        let pushing: Vec<_> = (0..2)
            .map(|link| {
                let mut route = Route::new((link, 2), &order, &owed, &layout(), true);
                thread::spawn(move || push(&mut route, 1))
            })
            .collect();
        let ahead = advice(range(6, 7), PageRange::EMPTY);
        let mut sent = vec![answer(&owed, &order, 5, &ahead)];
        sent.extend(pushing.into_iter().map(|pusher| pusher.join().unwrap()));
        check(&owed, all, &sent);
    });
}

/// Background is held back: the pusher sleeps until it is told what to read
/// ahead. In the model no time-out ever wakes it, so a ring that it missed
/// would be a deadlock.
#[test]
fn a_sleeping_pusher_hears_of_what_to_read_ahead() {
    loom::model(|| {
        let (order, owed) = (Arc::new(PushPolicy::new(1)), owed(range(6, 7)));
        let pushing = {
            let mut route = Route::new((0, 1), &order, &owed, &layout(), true);
            let order = Arc::clone(&order);
            thread::spawn(move || {
                loop {
                    match route.next(8, false) {
                        Next::Piece(piece) => return piece,
                        Next::Nothing => order.sleep(0, Duration::ZERO),
                        Next::Done => panic!("background has not begun"),
                    }
                }
            })
        };
        order.read_ahead(&advice(range(6, 8), PageRange::EMPTY));
        assert_eq!(pushing.join().unwrap(), range(6, 7));
    });
}

/// Two windows, one after the other, and a pusher that may fall asleep between
/// the two: both are read ahead.
#[test]
fn windows_that_come_one_after_the_other_are_all_taken() {
    let mut model = loom::model::Builder::new();
    // Each look at the table is many steps.
    model.preemption_bound = Some(2);
    model.check(|| {
        let (order, owed) = (Arc::new(PushPolicy::new(1)), owed(range(5, 7)));
        let pushing = {
            let mut route = Route::new((0, 1), &order, &owed, &layout(), true);
            let (order, owed) = (Arc::clone(&order), Arc::clone(&owed));
            thread::spawn(move || {
                while owed.count() > 0 {
                    match route.next(1, false) {
                        Next::Piece(_) => {}
                        Next::Nothing => order.sleep(0, Duration::ZERO),
                        Next::Done => panic!("background has not begun"),
                    }
                }
            })
        };
        for (stream, page) in [(0, 5), (1, 6)] {
            order.read_ahead(&Advice {
                stream,
                onwards: range(page, page + 1),
                before: PageRange::EMPTY,
            });
        }
        pushing.join().unwrap();
        assert_eq!(owed.count(), 0);
    });
}
