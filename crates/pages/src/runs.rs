//! Iterating over runs of set bits.

use crate::{PageBitmap, PageRange};

/// The maximal runs of set pages, in ascending order, from [`PageBitmap::runs`].
#[derive(Debug)]
pub struct Runs<'a> {
    bitmap: &'a PageBitmap,
    range: PageRange,
    /// The index of the current word.
    word: usize,
    /// The bits of the word that were not reported yet.
    bits: u64,
}

impl<'a> Runs<'a> {
    /// `range` must be inside the bitmap.
    pub(crate) fn new(bitmap: &'a PageBitmap, range: PageRange) -> Self {
        let word = crate::words::word_of(range.start());
        Self {
            bitmap,
            range,
            word,
            bits: bitmap.load_masked(word, range),
        }
    }

    /// Loads the next word; returns `false` at the end of the range.
    fn advance(&mut self) -> bool {
        let next = self.word + 1;
        if crate::words::first_of(next) >= self.range.end() {
            return false;
        }
        self.word = next;
        self.bits = self.bitmap.load_masked(next, self.range);
        true
    }
}

impl Iterator for Runs<'_> {
    type Item = PageRange;

    fn next(&mut self) -> Option<PageRange> {
        while self.bits == 0 {
            if !self.advance() {
                return None;
            }
        }
        let from = self.bits.trailing_zeros();
        let mut ones = (self.bits >> from).trailing_ones();
        let start = crate::words::first_of(self.word).saturating_add(u64::from(from));
        let mut pages = u64::from(ones);
        self.bits &= crate::words::bits_from(from + ones);
        // The run reaches the end of its word: it may continue in the next one.
        let mut reaches_end = from + ones == u64::BITS;
        while reaches_end && self.advance() {
            ones = self.bits.trailing_ones();
            pages += u64::from(ones);
            self.bits &= crate::words::bits_from(ones);
            reaches_end = ones == u64::BITS;
        }
        Some(PageRange::from_len(start, pages))
    }
}

impl std::iter::FusedIterator for Runs<'_> {}
