//! Bitmaps in atomic words, one bit for each guest frame.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::address::{Gfn, GfnRange, usize_from};
use crate::atomic::{AtomicU64, Ordering};

/// Number of bits in a word.
pub(crate) const WORD: u64 = 64;

/// Allocates `count` zero words; `None` if there is not enough memory.
pub(crate) fn zeroed_words(count: u64) -> Option<Box<[AtomicU64]>> {
    let count = usize::try_from(count).ok()?;
    let mut words = Vec::new();
    words.try_reserve_exact(count).ok()?;
    words.extend((0..count).map(|_| AtomicU64::new(0)));
    Some(words.into_boxed_slice())
}

/// Returns the indices of the words that hold `range`, each with the mask of the bits in the range.
pub(crate) fn words_of(range: GfnRange) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (range.start().index(), range.end().index());
    let words = if range.is_empty() {
        0..0
    } else {
        start / WORD..end.div_ceil(WORD)
    };
    words.map(move |word| (usize_from(word), mask_of(word, start, end)))
}

/// Returns the bits of word `word` that represent frames from `start` to `end` (exclusive).
pub(crate) fn mask_of(word: u64, start: u64, end: u64) -> u64 {
    let first = word * WORD;
    let low = start.saturating_sub(first);
    let high = (end - first).min(WORD);
    (u64::MAX >> (WORD - (high - low))) << low
}

/// Iterates over the numbers of the set bits.
pub(crate) fn ones(mut bits: u64) -> impl Iterator<Item = u64> {
    core::iter::from_fn(move || {
        let bit = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(bit)
    })
}

pub(crate) const fn word_and_bit(gfn: Gfn) -> (usize, u64) {
    (usize_from(gfn.index() / WORD), 1 << (gfn.index() % WORD))
}

/// A set of guest frames: one bit for each frame, no summary.
#[derive(Debug)]
pub(crate) struct Bitmap {
    words: Box<[AtomicU64]>,
}

impl Bitmap {
    pub(crate) fn new(pages: u64) -> Option<Self> {
        Some(Self {
            words: zeroed_words(pages.div_ceil(WORD))?,
        })
    }

    pub(crate) fn get(&self, gfn: Gfn) -> bool {
        let (word, bit) = word_and_bit(gfn);
        self.words
            .get(word)
            .is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words
            .get(word)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    pub(crate) fn any(&self, range: GfnRange) -> bool {
        words_of(range).any(|(word, mask)| self.word(word) & mask != 0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words
            .iter()
            .all(|word| word.load(Ordering::Acquire) == 0)
    }

    pub(crate) fn set(&self, range: GfnRange) {
        for (word, mask) in words_of(range) {
            self.words[word].fetch_or(mask, Ordering::AcqRel);
        }
    }

    pub(crate) fn clear(&self, range: GfnRange) {
        for (word, mask) in words_of(range) {
            self.words[word].fetch_and(!mask, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec;

    use super::*;

    fn range(start: u64, end: u64) -> GfnRange {
        GfnRange::new(Gfn::new(start), Gfn::new(end))
    }

    #[test]
    fn words_of_a_range_have_the_right_masks() {
        let all: Vec<_> = words_of(range(3, 130)).collect();
        assert_eq!(all, vec![(0, u64::MAX << 3), (1, u64::MAX), (2, 3)]);
        assert_eq!(words_of(range(64, 64)).count(), 0);
        assert_eq!(words_of(range(5, 6)).next(), Some((0, 1 << 5)));
    }
}
