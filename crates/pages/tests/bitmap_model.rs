//! Property tests of the bitmap against a simple model: one `bool` for each page.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a panic is the test's failure")]

use hikkoshi_pages::{Page, PageBitmap, PageRange, usize_from};
use proptest::prelude::*;

/// Every modifying operation; every query runs after each.
#[derive(Clone, Debug)]
enum Step {
    Set(u64),
    Claim(u64),
    SetRange(u64, u64),
    ClearRange(u64, u64),
    ClaimRun(u64, u64, u64),
    OrWord(usize, u64),
}

/// Words as in real dirty logs: random bits, long runs, all, none.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        Just(u64::MAX),
        Just(0),
        (0..64u32).prop_map(|shift| u64::MAX << shift),
        (0..64u32).prop_map(|shift| u64::MAX >> shift),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    // Bitmaps have up to 300 pages: some of these are beyond the end.
    let page = || 0..320u64;
    let max = prop_oneof![0..70u64, Just(u64::MAX)];
    prop_oneof![
        page().prop_map(Step::Set),
        page().prop_map(Step::Claim),
        (page(), 0..200u64).prop_map(|(start, len)| Step::SetRange(start, len)),
        (page(), 0..200u64).prop_map(|(start, len)| Step::ClearRange(start, len)),
        (page(), 0..400u64, max).prop_map(|(start, len, max)| Step::ClaimRun(start, len, max)),
        (0..6usize, word()).prop_map(|(index, bits)| Step::OrWord(index, bits)),
    ]
}

/// The model of the bitmap.
struct Model(Vec<bool>);

impl Model {
    fn indices(&self, range: PageRange) -> std::ops::Range<usize> {
        let pages = self.0.len();
        usize_from(range.start().index()).min(pages)..usize_from(range.end().index()).min(pages)
    }

    fn put(&mut self, index: u64, value: bool) -> bool {
        match self.0.get_mut(usize_from(index)) {
            Some(bit) => std::mem::replace(bit, value) != value,
            None => false,
        }
    }

    fn put_range(&mut self, range: PageRange, value: bool) -> u64 {
        range
            .iter()
            .filter(|page| self.put(page.index(), value))
            .count() as u64
    }

    fn set_word(&mut self, index: usize, bits: u64) -> u64 {
        (0..64)
            .filter(|bit| bits >> bit & 1 == 1)
            .filter(|bit| self.put(index as u64 * 64 + bit, true))
            .fold(0, |changed, bit| changed | 1 << bit)
    }

    fn runs(&self, range: PageRange) -> Vec<PageRange> {
        let mut runs: Vec<PageRange> = Vec::new();
        for index in self.indices(range) {
            let page = Page::new(index as u64);
            if !self.0[index] {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end() == page => {
                    *run = PageRange::from_len(run.start(), run.len() + 1);
                }
                _ => runs.push(PageRange::one(page)),
            }
        }
        runs
    }

    fn count(&self, range: PageRange) -> u64 {
        self.0[self.indices(range)]
            .iter()
            .filter(|set| **set)
            .count() as u64
    }
}

fn check_same(bitmap: &PageBitmap, model: &Model, range: PageRange) {
    for index in 0..320 {
        let expected = model.0.get(usize_from(index)).copied().unwrap_or(false);
        assert_eq!(bitmap.get(Page::new(index)), expected, "page {index}");
    }
    for range in [range, bitmap.all()] {
        assert_eq!(bitmap.runs(range).collect::<Vec<_>>(), model.runs(range));
        assert_eq!(bitmap.count_range(range), model.count(range));
        assert_eq!(bitmap.any(range), model.count(range) > 0);
    }
    assert_eq!(bitmap.count(), model.count(bitmap.all()));
}

proptest! {
    #[test]
    fn bitmap_matches_a_list_of_bools(
        pages in 0..300u64,
        full in any::<bool>(),
        steps in prop::collection::vec(step(), 0..24),
        (start, len) in (0..320u64, 0..320u64),
    ) {
        let bitmap = if full { PageBitmap::full(pages) } else { PageBitmap::empty(pages) };
        let mut model = Model(vec![full; usize_from(pages)]);
        let looked_at = PageRange::from_len(Page::new(start), len);
        check_same(&bitmap, &model, looked_at);
        for step in steps {
            match step {
                Step::Set(page) => {
                    prop_assert_eq!(bitmap.set(Page::new(page)), model.put(page, true));
                }
                Step::Claim(page) => {
                    prop_assert_eq!(bitmap.claim(Page::new(page)), model.put(page, false));
                }
                Step::SetRange(start, len) => {
                    let range = PageRange::from_len(Page::new(start), len);
                    prop_assert_eq!(bitmap.set_range(range), model.put_range(range, true));
                }
                Step::ClearRange(start, len) => {
                    let range = PageRange::from_len(Page::new(start), len);
                    prop_assert_eq!(bitmap.clear_range(range), model.put_range(range, false));
                }
                Step::ClaimRun(start, len, max) => {
                    let range = PageRange::from_len(Page::new(start), len);
                    // With a single thread, the claimed run is the whole first run, up to `max`.
                    let expected = model
                        .runs(range)
                        .first()
                        .map(|run| PageRange::from_len(run.start(), run.len().min(max)))
                        .filter(|run| !run.is_empty());
                    prop_assert_eq!(bitmap.claim_run(range, max), expected);
                    model.put_range(expected.unwrap_or_default(), false);
                }
                Step::OrWord(index, bits) => {
                    prop_assert_eq!(bitmap.or_word(index, bits), model.set_word(index, bits));
                }
            }
            check_same(&bitmap, &model, looked_at);
        }
    }

    #[test]
    fn word_access_and_page_access_agree(pages in 1..300u64, words in prop::collection::vec(word(), 5)) {
        let bitmap = PageBitmap::empty(pages);
        for (index, bits) in words.iter().enumerate() {
            let _ = bitmap.or_word(index, *bits);
        }
        prop_assert_eq!(bitmap.word_count() as u64, pages.div_ceil(64));
        for page in 0..320 {
            let (index, bit) = (usize_from(page / 64), page % 64);
            let set = page < pages && words[index.min(4)] >> bit & 1 == 1;
            prop_assert_eq!(bitmap.get(Page::new(page)), set && index < 5);
            prop_assert_eq!(bitmap.load_word(index) >> bit & 1 == 1, set && index < 5);
        }
    }

    #[test]
    fn ranges_with_the_largest_page_numbers_are_clipped(
        start in prop_oneof![0..200u64, u64::MAX - 200..=u64::MAX],
        len in prop_oneof![0..200u64, u64::MAX - 200..=u64::MAX],
        max in prop_oneof![0..200u64, u64::MAX - 200..=u64::MAX],
    ) {
        let bitmap = PageBitmap::full(130);
        let range = PageRange::from_len(Page::new(start), len);
        let inside = range.intersect(bitmap.all()).len();
        prop_assert_eq!(bitmap.count_range(range), inside);
        prop_assert_eq!(bitmap.any(range), inside > 0);
        prop_assert_eq!(bitmap.runs(range).map(PageRange::len).sum::<u64>(), inside);
        prop_assert!(!bitmap.set(Page::new(start.max(130))));
        prop_assert!(!bitmap.claim(Page::new(start.max(130))));
        let won = bitmap.claim_run(range, max).map_or(0, PageRange::len);
        prop_assert_eq!(won, inside.min(max));
        prop_assert_eq!(bitmap.count(), 130 - won);
        prop_assert_eq!(bitmap.set_range(range), won);
    }
}
