//! KVM's bitmaps: one bit for each page of a slot, lowest first, in words of 64 bits. The first bit
//! is the slot's first page, which may be anywhere in a word of the layout's bitmap.

use std::ops::Range;

use hikkoshi_pages::{Page, PageBitmap, PageRange, usize_from};

/// Number of pages in a word. `KVM_CLEAR_DIRTY_LOG` clears ranges of whole words.
pub(crate) const WORD: u64 = 64;

/// Returns the number of words for so many pages.
pub(crate) const fn word_count(pages: u64) -> usize {
    usize_from(pages.div_ceil(WORD))
}

/// Returns the words that hold the bits of `part`, which is inside the slot with the pages `slot`.
pub(crate) fn words_of(slot: PageRange, part: PageRange) -> Range<usize> {
    let start = part.start().index() - slot.start().index();
    let end = part.end().index() - slot.start().index();
    usize_from(start / WORD)..word_count(end)
}

/// Clears the bits outside `part` in its [`words_of`], the first of which is `words[0]`. The kernel
/// may set bits after the last page of a slot.
pub(crate) fn clip(words: &mut [u64], slot: PageRange, part: PageRange) {
    let start = (part.start().index() - slot.start().index()) % WORD;
    let end = (part.end().index() - slot.start().index()) % WORD;
    if let Some(first) = words.first_mut() {
        *first &= u64::MAX << start;
    }
    if let Some(last) = words.last_mut().filter(|_| end != 0) {
        *last &= !(u64::MAX << end);
    }
}

/// Moves the words of a bitmap, the first bit of which is `first`, to the words of the layout's
/// bitmap: calls `word` with the index of a word, and bits that belong there. Skips empty words.
pub(crate) fn for_each_word(first: Page, words: &[u64], mut word: impl FnMut(usize, u64)) {
    let (shift, first) = (first.index() % WORD, usize_from(first.index() / WORD));
    for (index, bits) in (first..).zip(words) {
        if *bits == 0 {
            continue;
        }
        word(index, bits << shift);
        if shift != 0 {
            word(index + 1, bits >> (WORD - shift));
        }
    }
}

/// Sets the pages of `words` in `bitmap`.
pub(crate) fn add(bitmap: &PageBitmap, first: Page, words: &[u64]) {
    for_each_word(first, words, |index, bits| {
        if bits != 0 {
            bitmap.or_word(index, bits);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(Page::new(start), Page::new(end))
    }

    /// Every start and end of a part near the words' edges, at every shift.
    #[test]
    fn a_part_of_a_slot_arrives_at_its_pages() {
        for start in [0, 1, 37, 63, 64, 100] {
            let slot = range(start, start + 200);
            for from in [0, 1, 63, 64, 65, 127, 128, 199] {
                for to in [1, 63, 64, 65, 128, 129, 199, 200] {
                    let part = range(start + from, start + to);
                    if part.is_empty() {
                        continue;
                    }
                    let all = [u64::MAX; 4];
                    let of_part = words_of(slot, part);
                    let mut words = all[of_part.clone()].to_vec();
                    clip(&mut words, slot, part);
                    let bitmap = PageBitmap::empty(400);
                    let first = Page::new(start + of_part.start as u64 * WORD);
                    add(&bitmap, first, &words);
                    assert_eq!(bitmap.runs(bitmap.all()).collect::<Vec<_>>(), [part]);
                }
            }
        }
    }
}
