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
use crate::source::postcopy::push_policy::{Next, NextPages, PushPolicy};
use crate::source::unsent::UnsentPages;

const PAGES: u64 = 12;

fn range(from: u64, to: u64) -> PageRange {
    PageRange::new(Page::new(from), Page::new(to))
}

fn layout() -> RamLayout {
    let block = RamBlock::new("ram", PAGES * PAGE_BYTES, PAGE_BYTES);
    RamLayout::new(vec![block]).unwrap()
}

fn unsent(pages: PageRange) -> Arc<UnsentPages> {
    let unsent = UnsentPages::empty(PAGES, false);
    unsent.insert(pages);
    Arc::new(unsent)
}

fn advice(onwards: PageRange, before: PageRange) -> Advice {
    Advice {
        stream: 0,
        onwards,
        before,
    }
}

/// What the urgent thread does with a request: claims, sends, publishes hints.
fn answer(unsent: &UnsentPages, policy: &PushPolicy, page: u64, advice: &Advice) -> Vec<PageRange> {
    let sent = unsent.claim(range(page, page + 1), 1);
    policy.read_ahead(advice);
    sent.into_iter().collect()
}

/// Pushes until every page has been claimed.
fn push(next_pages: &mut NextPages, max: u64) -> Vec<PageRange> {
    std::iter::from_fn(|| match next_pages.next(max, true) {
        Next::Send(run) => Some(run),
        Next::Done => None,
        Next::Nothing => panic!("background has begun"),
    })
    .collect()
}

/// Each page of `all` was sent once.
fn check(unsent: &UnsentPages, all: PageRange, sent: &[Vec<PageRange>]) {
    let mut pages: Vec<_> = sent.iter().flatten().flat_map(|run| run.iter()).collect();
    pages.sort();
    assert!(pages.iter().copied().eq(all.iter()), "{sent:?}");
    assert_eq!(unsent.count(), 0);
}

#[test]
fn a_page_is_sent_once_whatever_is_hinted() {
    loom::model(|| {
        let all = range(4, 7);
        let (policy, unsent) = (Arc::new(PushPolicy::new(1)), unsent(all));
        let pushing = {
            let mut next_pages = NextPages::new((0, 1), &policy, &unsent, &layout());
            thread::spawn(move || push(&mut next_pages, 2))
        };
        let advice = advice(range(6, 8), range(4, 5));
        let urgent = answer(&unsent, &policy, 5, &advice);
        let pushed = pushing.join().unwrap();
        check(&unsent, all, &[urgent, pushed]);
    });
}

#[test]
fn two_links_and_a_request_share_the_pages() {
    let mut model = loom::model::Builder::new();
    // All orders of three threads would take hours.
    model.preemption_bound = Some(1);
    model.check(|| {
        let all = range(5, 7);
        let (policy, unsent) = (Arc::new(PushPolicy::new(2)), unsent(all));
        let pushing: Vec<_> = (0..2)
            .map(|link| {
                let mut next_pages = NextPages::new((link, 2), &policy, &unsent, &layout());
                thread::spawn(move || push(&mut next_pages, 1))
            })
            .collect();
        let advice = advice(range(6, 7), PageRange::EMPTY);
        let mut sent = vec![answer(&unsent, &policy, 5, &advice)];
        sent.extend(pushing.into_iter().map(|pusher| pusher.join().unwrap()));
        check(&unsent, all, &sent);
    });
}

/// Background pages are held back: the pusher sleeps until there are pages to read
/// ahead. In the model no timeout wakes it, so a missed wake-up is a deadlock.
#[test]
fn a_sleeping_pusher_is_woken_to_read_ahead() {
    loom::model(|| {
        let (policy, unsent) = (Arc::new(PushPolicy::new(1)), unsent(range(6, 7)));
        let pushing = {
            let mut next_pages = NextPages::new((0, 1), &policy, &unsent, &layout());
            let policy = Arc::clone(&policy);
            thread::spawn(move || {
                loop {
                    match next_pages.next(8, false) {
                        Next::Send(run) => return run,
                        Next::Nothing => policy.sleep(0, Duration::ZERO),
                        Next::Done => panic!("background has not begun"),
                    }
                }
            })
        };
        policy.read_ahead(&advice(range(6, 8), PageRange::EMPTY));
        assert_eq!(pushing.join().unwrap(), range(6, 7));
    });
}

/// Two windows, one after the other, and a pusher that may fall asleep between
/// the two: both are read ahead.
#[test]
fn windows_that_come_one_after_the_other_are_all_taken() {
    let mut model = loom::model::Builder::new();
    // Each search of the table is many steps.
    model.preemption_bound = Some(2);
    model.check(|| {
        let (policy, unsent) = (Arc::new(PushPolicy::new(1)), unsent(range(5, 7)));
        let pushing = {
            let mut next_pages = NextPages::new((0, 1), &policy, &unsent, &layout());
            let (policy, unsent) = (Arc::clone(&policy), Arc::clone(&unsent));
            thread::spawn(move || {
                while unsent.count() > 0 {
                    match next_pages.next(1, false) {
                        Next::Send(_) => {}
                        Next::Nothing => policy.sleep(0, Duration::ZERO),
                        Next::Done => panic!("background has not begun"),
                    }
                }
            })
        };
        for (stream, page) in [(0, 5), (1, 6)] {
            policy.read_ahead(&Advice {
                stream,
                onwards: range(page, page + 1),
                before: PageRange::EMPTY,
            });
        }
        pushing.join().unwrap();
        assert_eq!(unsent.count(), 0);
    });
}
