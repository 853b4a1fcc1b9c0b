//! Hot pages: those that the guest has written again and again.
//!
//! How often a page was found dirty counts from 0 to [`HOTTEST`] and stays
//! there. Three bits a page, as bitmaps of "at least once", "at least twice",
//! …: a whole word of pages is counted by a few operations, and those of one
//! heat are found a word at a time.

use hikkoshi_pages::{PageBitmap, PageRange};

use crate::source::unsent::bit_scan::{first_run, words};

/// Where counting ends.
pub(crate) const HOTTEST: usize = 3;

/// How often each page was found dirty.
#[derive(Debug)]
pub(crate) struct WriteCounts {
    /// The pages counted more than once for each index below that: `[0]` at
    /// least once, …
    at_least: [PageBitmap; HOTTEST],
}

impl WriteCounts {
    /// Nothing was dirty yet.
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            at_least: std::array::from_fn(|_| PageBitmap::empty(pages)),
        }
    }

    /// The pages of `range` were found dirty once more.
    ///
    /// Two threads that count the same page at once may count it as one.
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
    /// to [`HOTTEST`]) and are set in the bitmap whose words `word` gives; as
    /// far as it goes in one word.
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
