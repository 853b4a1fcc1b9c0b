//! The dirty bitmap: one bit for each guest frame, and a summary bit for each word, so that a scan
//! for a few dirty pages of a large guest does not read all words.

use alloc::boxed::Box;
use core::ops::Range;

use crate::address::{Gfn, GfnRange, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::bitmap::{WORD, mask_of, ones, word_and_bit, zeroed_words};

/// The dirty bits and their summary. Several threads can set and take bits at the same time.
///
/// Invariant: while no thread is in [`DirtyBitmap::set_word`], the summary bit of each word with a
/// set bit is set.
#[derive(Debug)]
pub(crate) struct DirtyBitmap {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl DirtyBitmap {
    pub(crate) fn new(pages: u64) -> Option<Self> {
        let words = zeroed_words(pages.div_ceil(WORD))?;
        let summary = zeroed_words((words.len() as u64).div_ceil(WORD))?;
        Some(Self { words, summary })
    }

    /// Sets the bits of `mask` in word `word`.
    ///
    /// Both steps are always read-modify-writes. If a take clears the summary bit before our write,
    /// our write sets it again for the next take. If a take clears it after our write, the take has
    /// read our write and therefore sees the word's bit. If only the thread that sets the first bit
    /// of a word set the summary, a take would miss our bit until that thread continued.
    pub(crate) fn set_word(&self, word: usize, mask: u64) {
        if let Some(bits) = self.words.get(word) {
            bits.fetch_or(mask, Ordering::AcqRel);
            self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::AcqRel);
        }
    }

    pub(crate) fn set(&self, gfn: Gfn) {
        let (word, bit) = word_and_bit(gfn);
        self.set_word(word, bit);
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        self.words
            .get(word)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Clears the bits of `mask` in word `word` and returns those that were set.
    pub(crate) fn take_word(&self, word: usize, mask: u64) -> u64 {
        let Some(bits) = self.words.get(word) else {
            return 0;
        };
        if bits.load(Ordering::Acquire) & mask == 0 {
            return 0;
        }
        if mask == u64::MAX {
            bits.swap(0, Ordering::AcqRel)
        } else {
            bits.fetch_and(!mask, Ordering::AcqRel) & mask
        }
    }

    /// Clears all bits of `range` and calls `found` with each word that had set bits, in ascending
    /// order. Does not access words outside the range. A word that is partly in the range keeps its
    /// other bits and its summary bit.
    pub(crate) fn take(&self, range: GfnRange, mut found: impl FnMut(usize, u64)) {
        self.visit(
            range,
            |word, mask| {
                let bits = self.take_word(word, mask);
                if bits != 0 {
                    found(word, bits);
                }
            },
            true,
        );
    }

    /// Calls `found` with each word that has set bits in `range`, in ascending order. Changes
    /// nothing.
    pub(crate) fn peek(&self, range: GfnRange, mut found: impl FnMut(usize, u64)) {
        self.visit(
            range,
            |word, mask| {
                let bits = self.words[word].load(Ordering::Acquire) & mask;
                if bits != 0 {
                    found(word, bits);
                }
            },
            false,
        );
    }

    fn visit(&self, range: GfnRange, mut word: impl FnMut(usize, u64), clear: bool) {
        let last = self.words.len() as u64 * WORD;
        let range = range.intersect(GfnRange::from_len(Gfn::new(0), last));
        let (start, end) = (range.start().index(), range.end().index());
        if range.is_empty() {
            return;
        }
        let full: Range<u64> = start.div_ceil(WORD)..end / WORD;
        let edge = |at: u64, word: &mut dyn FnMut(usize, u64)| {
            word(usize_from(at), mask_of(at, start, end));
        };
        if full.is_empty() {
            for at in start / WORD..end.div_ceil(WORD) {
                edge(at, &mut word);
            }
            return;
        }
        if start % WORD != 0 {
            edge(start / WORD, &mut word);
        }
        for at in full.start / WORD..full.end.div_ceil(WORD) {
            let mask = mask_of(at, full.start, full.end);
            let summary = &self.summary[usize_from(at)];
            let mut set = summary.load(Ordering::Acquire) & mask;
            if set != 0 && clear {
                set = summary.fetch_and(!mask, Ordering::AcqRel) & mask;
            }
            for bit in ones(set) {
                word(usize_from(at * WORD + bit), u64::MAX);
            }
        }
        if end % WORD != 0 {
            edge(end / WORD, &mut word);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn range(start: u64, end: u64) -> GfnRange {
        GfnRange::new(Gfn::new(start), Gfn::new(end))
    }

    fn taken(bits: &DirtyBitmap, range: GfnRange) -> Vec<u64> {
        let mut all = Vec::new();
        bits.take(range, |word, set| {
            all.extend(ones(set).map(|bit| word as u64 * WORD + bit))
        });
        all
    }

    #[test]
    fn take_clears_only_the_range() {
        let bits = DirtyBitmap::new(100_000).unwrap();
        let pages = [0, 1, 63, 64, 100, 4096, 4097, 70_000, 99_999];
        for page in pages {
            bits.set(Gfn::new(page));
        }
        assert_eq!(taken(&bits, range(1, 64)), vec![1, 63]);
        assert_eq!(taken(&bits, range(90, 4097)), vec![100, 4096]);
        assert_eq!(taken(&bits, range(90, 4097)), vec![]);
        assert_eq!(
            taken(&bits, range(0, 100_000)),
            vec![0, 64, 4097, 70_000, 99_999]
        );
        assert_eq!(taken(&bits, range(0, u64::MAX)), vec![]);
    }

    #[test]
    fn peek_changes_nothing() {
        let bits = DirtyBitmap::new(1000).unwrap();
        bits.set(Gfn::new(999));
        for _ in 0..2 {
            let mut seen = 0;
            bits.peek(range(0, 1000), |_, set| seen += set.count_ones());
            assert_eq!(seen, 1);
        }
        assert_eq!(taken(&bits, range(999, 1000)), vec![999]);
    }
}

#[cfg(all(test, loom))]
mod models {
    extern crate std;

    use std::sync::Arc;

    use super::*;

    /// A bit that is set is returned by the next take, even while another thread sets a bit of the
    /// same word.
    #[test]
    fn set_vs_set_vs_take() {
        loom::model(|| {
            let bits = Arc::new(DirtyBitmap::new(128).unwrap());
            let other = {
                let bits = bits.clone();
                loom::thread::spawn(move || bits.set(Gfn::new(0)))
            };
            let mut taken = 0;
            bits.set(Gfn::new(1));
            let all = GfnRange::from_len(Gfn::new(0), 128);
            bits.take(all, |_, found| taken |= found);
            assert_eq!(taken & 2, 2);
            other.join().unwrap();
            bits.take(all, |_, found| taken |= found);
            assert_eq!(taken, 3);
        });
    }
}
