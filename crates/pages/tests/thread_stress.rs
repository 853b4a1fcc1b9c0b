//! Stress tests with threads on a large bitmap: every page is won exactly once.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a panic is the test's failure")]

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use hikkoshi_pages::{Page, PageBitmap, PageRange, usize_from};

/// Not a multiple of 64, so that the last word is a partial one.
const PAGES: u64 = (1 << 20) + 37;

/// The number of times that each page was won.
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
            assert_eq!(times, 1, "NEVER RETRIED: page {page} was won {times} times");
        }
    }
}

/// A pseudo-random generator for the order of requests, the same in every run.
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
    let unsent = PageBitmap::full(PAGES);
    let tally = Tally::new();
    let urgent_won = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|threads| {
        // Two threads that answer page requests for random pages.
        for seed in [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9] {
            let (unsent, tally, done, urgent_won) = (&unsent, &tally, &done, &urgent_won);
            threads.spawn(move || {
                let mut numbers = Numbers(seed);
                while !done.load(Ordering::Relaxed) {
                    let page = Page::new(numbers.next() % PAGES);
                    if unsent.claim(page) {
                        tally.won(page);
                        urgent_won.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        // Four threads that send the rest, with different maximum run lengths: from the start, from
        // the middle, and from near the end (all of them wrap around).
        let pushers: Vec<_> = [(0, 256), (PAGES / 2, 100), (PAGES - 5, 64), (0, 1)]
            .into_iter()
            .map(|(cursor, max)| {
                let (unsent, tally, urgent_won) = (&unsent, &tally, &urgent_won);
                threads.spawn(move || {
                    // Otherwise, on a busy machine, these threads could finish before the others
                    // have started.
                    while urgent_won.load(Ordering::Relaxed) == 0 {
                        thread::yield_now();
                    }
                    let (before, after) = unsent.all().split_at(Page::new(cursor));
                    for mut rest in [after, before] {
                        while let Some(run) = unsent.claim_run(rest, max) {
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
    assert_eq!(unsent.count(), 0);
}

#[test]
fn each_newly_set_page_is_won_once() {
    // Writers set pages of a few words repeatedly while other threads claim them: each `set` that
    // finds its page clear is matched by one win.
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
                        0 | 1 => u64::from(bitmap.claim(page)),
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
