//! Counts writes, to find hot pages: those that the guest writes often.
//!
//! A page's count goes from 0 to [`HOTTEST`] and stays there. It is three bits, in
//! bitmaps of "at least once", "at least twice", …: a few operations count a whole
//! word of pages, and a search examines one word at a time.

use hikkoshi_pages::{PageBitmap, PageRange};

use crate::source::bit_scan::{first_run, words};

/// The highest count.
pub(crate) const HOTTEST: usize = 3;

/// How often each page was found dirty.
#[derive(Debug)]
pub(crate) struct WriteCounts {
    /// The pages that were dirty at least once (`[0]`), twice (`[1]`), …
    at_least: [PageBitmap; HOTTEST],
}

impl WriteCounts {
    /// All counts are 0.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            at_least: std::array::from_fn(|_| PageBitmap::empty(pages)),
        }
    }

    /// Counts a write to each page of `range`.
    ///
    /// If two threads count the same page at the same time, it may count once.
    pub(crate) fn count(&self, range: PageRange) {
        for (number, mask) in words(range) {
            let mut rest = mask;
            for plane in &self.at_least {
                rest &= !plane.or_word(number, rest);
                if rest == 0 {
                    break;
                }
            }
        }
    }

    /// The first run in `range` of pages that were dirty at least `times` (1
    /// to [`HOTTEST`]) and are set in the bitmap whose words `word` returns; up to the
    /// end of its word.
    pub(crate) fn first(
        &self,
        times: usize,
        range: PageRange,
        word: impl Fn(usize) -> u64,
    ) -> Option<PageRange> {
        let plane = self.at_least.get(times.checked_sub(1)?)?;
        first_run(range, |number| plane.load_word(number) & word(number))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::Page;
    use proptest::prelude::*;

    proptest! {
        /// The planes say what a counter for each page would.
        #[test]
        fn counts_and_stays_at_the_hottest(
            ranges in prop::collection::vec((0u64..300, 0u64..100), 0..40),
        ) {
            let write_counts = WriteCounts::new(300);
            let mut counts = [0usize; 300];
            for (start, len) in ranges {
                let range = PageRange::from_len(Page::new(start), len.min(300 - start));
                write_counts.count(range);
                for page in range {
                    let count = &mut counts[usize::try_from(page.index()).unwrap()];
                    *count = (*count + 1).min(HOTTEST);
                }
            }
            for times in 1..=HOTTEST {
                let mut found = [false; 300];
                let mut rest = PageRange::from_len(Page::new(0), 300);
                while let Some(run) = write_counts.first(times, rest, |_| u64::MAX) {
                    run.iter().for_each(|p| found[usize::try_from(p.index()).unwrap()] = true);
                    rest = PageRange::new(run.end(), rest.end());
                }
                for (found, count) in found.iter().zip(counts) {
                    prop_assert_eq!(*found, count >= times);
                }
            }
        }
    }
}
