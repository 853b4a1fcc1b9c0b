//! Real threads on a big bitmap: every page is won exactly once.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test's failure is its message")]

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use hikkoshi_pages::{Page, PageBitmap, PageRange, usize_from};

/// Not a multiple of 64, so that the last word is a partial one.
const PAGES: u64 = (1 << 20) + 37;

/// How often each page was won.
struct Tally(Vec<AtomicU8>);

impl Tally {
    fn new() -> Self {
        Self((0..PAGES).map(|_| AtomicU8::new(0)).collect())
    }

    fn won(&self, page: Page) {
        self.0[usize_from(page.index())].fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self) {
        for (page, times) in self.0.iter().enumerate() {
            let times = times.load(Ordering::Relaxed);
            assert_eq!(times, 1, "page {page} was won {times} times");
        }
    }
}

/// A small generator of numbers: the order of requests, the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn urgent_and_background_claims_win_every_page_once() {
    let owed = PageBitmap::full(PAGES);
    let tally = Tally::new();
    let urgent_won = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        // Two that answer page requests, anywhere.
        for seed in [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9] {
            let (owed, tally, done, urgent_won) = (&owed, &tally, &done, &urgent_won);
            threads.spawn(move || {
                let mut numbers = Numbers(seed);
                while !done.load(Ordering::Relaxed) {
                    let page = Page::new(numbers.next() % PAGES);
                    if owed.claim(page) {
                        tally.won(page);
                        urgent_won.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Four that push the rest: from the start, from the middle, from near
        // the end (all of them wrap around), with run lengths of their own.
        let pushers: Vec<_> = [(0, 256), (PAGES / 2, 100), (PAGES - 5, 64), (0, 1)]
            .into_iter()
            .map(|(cursor, max)| {
                let (owed, tally, urgent_won) = (&owed, &tally, &urgent_won);
                threads.spawn(move || {
                    // On a busy machine all could be over before the others
                    // have begun, and nothing would be tested.
                    while urgent_won.load(Ordering::Relaxed) == 0 {
                        thread::yield_now();
                    }
                    let (before, after) = owed.all().split_at(Page::new(cursor));
                    for mut rest in [after, before] {
                        while let Some(run) = owed.claim_run(rest, max) {
                            assert!(run.len() <= max && rest.contains_range(run), "{run:?}");
                            run.iter().for_each(|page| tally.won(page));
                            rest = PageRange::new(run.end(), rest.end());
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = pushers.into_iter().map(|pusher| pusher.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
    tally.check();
    assert_eq!(owed.count(), 0);
}

#[test]
fn pages_set_again_and_again_are_won_as_often_as_they_were_newly_set() {
    // Writers set pages of a few words over and over while others claim them:
    // each `set` that found its page clear is answered by one win.
    const ROUNDS: u64 = 200_000;
    let bitmap = PageBitmap::empty(200);
    let newly_set = AtomicU64::new(0);
    let won = AtomicU64::new(0);
    let writing = AtomicU64::new(2);
    thread::scope(|threads| {
        for seed in [1, 2] {
            let (bitmap, newly_set, writing) = (&bitmap, &newly_set, &writing);
            threads.spawn(move || {
                let mut numbers = Numbers(seed);
                let mut set = 0;
                for round in 0..ROUNDS {
                    let page = Page::new(numbers.next() % 200);
                    set += if round % 16 == 0 {
                        bitmap.set_range(PageRange::from_len(page, 70))
                    } else {
                        u64::from(bitmap.set(page))
                    };
                }
                newly_set.fetch_add(set, Ordering::Relaxed);
                writing.fetch_sub(1, Ordering::Release);
            });
        }
        for seed in [3, 4] {
            let (bitmap, won, writing) = (&bitmap, &won, &writing);
            threads.spawn(move || {
                let mut numbers = Numbers(seed);
                let mut mine = 0;
                while writing.load(Ordering::Acquire) > 0 {
                    let number = numbers.next();
                    let page = Page::new(number % 200);
                    mine += match number >> 32 & 3 {
                        0 => u64::from(bitmap.claim(page)),
                        1 => u64::from(
                            bitmap
                                .take_word(usize_from(number & 3), number)
                                .count_ones(),
                        ),
                        2 => bitmap.clear_range(PageRange::from_len(page, 3)),
                        _ => bitmap
                            .claim_run(PageRange::new(page, Page::new(200)), 90)
                            .map_or(0, PageRange::len),
                    };
                }
                won.fetch_add(mine, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(newly_set.into_inner(), won.into_inner() + bitmap.count());
}
