//! The hints of the urgent thread for the pushers: a small fixed table of atomics.
//!
//! It has one writer, any number of readers, and no lock. Each entry is one word, so
//! a reader sees it whole or not at all. A newer entry replaces an older one of the
//! same stream. These are only hints: correctness depends on the claim, so `Relaxed`
//! is enough everywhere. `wakeup.rs` ensures that a sleeping pusher does not miss a
//! hint.

use hikkoshi_pages::{Page, PageRange};

use crate::source::postcopy::push_policy::access_streams::{Advice, STREAMS};
use crate::sync::{AtomicU64, Ordering};

/// A range of pages, packed into a word: the first page's number in the upper 40
/// bits (a layout has at most 2^34), the length in the lower 24; 0 for none.
fn pack(range: PageRange) -> u64 {
    let length = range.len().min((1 << LENGTH) - 1);
    if length == 0 || range.start().index() >> (64 - LENGTH) != 0 {
        return 0;
    }
    range.start().index() << LENGTH | length
}

fn unpack(word: u64) -> PageRange {
    PageRange::from_len(Page::new(word >> LENGTH), word & ((1 << LENGTH) - 1))
}

/// Bits for the number of pages: the largest host page has 2^18.
const LENGTH: u32 = 24;

/// The windows of one stream.
#[derive(Debug)]
struct Windows {
    /// Pages after the request, taken from the beginning.
    onwards: AtomicU64,
    /// Pages before the request, taken from the end: the nearest pages first.
    before: AtomicU64,
}

/// The pages to read ahead.
#[derive(Debug)]
pub(crate) struct ReadAheadTable {
    streams: [Windows; STREAMS],
}

impl ReadAheadTable {
    pub(crate) fn new() -> Self {
        Self {
            streams: std::array::from_fn(|_| Windows {
                onwards: AtomicU64::new(0),
                before: AtomicU64::new(0),
            }),
        }
    }

    /// Replaces a stream's windows; returns whether they contain pages.
    pub(crate) fn publish(&self, advice: &Advice) -> bool {
        let Some(windows) = self.streams.get(advice.stream) else {
            return false;
        };
        let (onwards, before) = (pack(advice.onwards), pack(advice.before));
        windows.onwards.store(onwards, Ordering::Relaxed);
        windows.before.store(before, Ordering::Relaxed);
        onwards | before != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.streams.iter().all(|windows| {
            windows.onwards.load(Ordering::Relaxed) | windows.before.load(Ordering::Relaxed) == 0
        })
    }

    /// Takes up to `max` pages of one stream that `wanted` accepts. The next call
    /// begins at the stream after it.
    pub(crate) fn take(
        &self,
        turn: &mut usize,
        max: u64,
        wanted: impl Fn(Page) -> bool,
    ) -> Option<PageRange> {
        for number in 0..STREAMS {
            let number = (*turn + number) % STREAMS;
            let Some(windows) = self.streams.get(number) else {
                continue;
            };
            let onwards = |all: PageRange| all.split_at(all.start().saturating_add(max));
            let before = |all: PageRange| {
                let cut = all
                    .end()
                    .index()
                    .saturating_sub(max)
                    .max(all.start().index());
                let (rest, run) = all.split_at(Page::new(cut));
                (run, rest)
            };
            let run = take_from(&windows.onwards, onwards, &wanted)
                .or_else(|| take_from(&windows.before, before, &wanted));
            if run.is_some() {
                *turn = number + 1;
                return run;
            }
        }
        None
    }
}

/// Takes the run that `split` returns first, and leaves the rest, which it returns
/// second.
fn take_from(
    word: &AtomicU64,
    split: impl Fn(PageRange) -> (PageRange, PageRange),
    wanted: impl Fn(Page) -> bool,
) -> Option<PageRange> {
    let mut seen = word.load(Ordering::Relaxed);
    while seen != 0 {
        let all = unpack(seen);
        if !wanted(all.start()) {
            return None;
        }
        let (run, rest) = split(all);
        match word.compare_exchange(seen, pack(rest), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(run),
            // Another pusher took a run, or there is a new window.
            Err(now) => seen = now,
        }
    }
    None
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    fn advice(stream: usize, onwards: PageRange, before: PageRange) -> Advice {
        Advice {
            stream,
            onwards,
            before,
        }
    }

    #[test]
    fn streams_take_turns_and_the_nearest_pages_come_first() {
        let table = ReadAheadTable::new();
        assert!(table.is_empty());
        assert!(!table.publish(&advice(1, range(9, 9), PageRange::EMPTY)));
        assert!(table.publish(&advice(3, range(101, 112), range(92, 100))));
        assert!(table.publish(&advice(5, range(500, 508), PageRange::EMPTY)));
        assert!(!table.is_empty());
        let mut turn = 0;
        let mut next = || table.take(&mut turn, 5, |_| true);
        assert_eq!(next(), Some(range(101, 106)));
        assert_eq!(next(), Some(range(500, 505)));
        assert_eq!(next(), Some(range(106, 111)));
        assert_eq!(next(), Some(range(505, 508)));
        assert_eq!(next(), Some(range(111, 112)));
        assert_eq!(next(), Some(range(95, 100)));
        assert_eq!(next(), Some(range(92, 95)));
        assert_eq!(next(), None);
        assert!(table.is_empty());
    }

    #[test]
    fn unwanted_pages_remain_until_a_new_window_replaces_them() {
        let table = ReadAheadTable::new();
        let mut turn = 0;
        table.publish(&advice(0, range(10, 20), PageRange::EMPTY));
        assert_eq!(table.take(&mut turn, 8, |page| page.index() > 10), None);
        table.publish(&advice(0, range(30, 34), PageRange::EMPTY));
        assert_eq!(table.take(&mut turn, 8, |_| true), Some(range(30, 34)));
        assert!(table.is_empty());
    }

    #[test]
    fn the_largest_guest_and_the_largest_page_fit_into_a_word() {
        let last = hikkoshi_pages::MAX_PAGES;
        for window in [range(last - 1, last), range(last - (1 << 18), last)] {
            assert_eq!(unpack(pack(window)), window);
        }
        assert_eq!(pack(PageRange::EMPTY), 0);
    }
}
