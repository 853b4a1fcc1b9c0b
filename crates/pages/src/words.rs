//! Words of bits: where the bit of a page is.

use crate::{Page, PageRange, usize_from};

/// Number of pages in a word.
pub(crate) const WORD: u64 = u64::BITS as u64;

/// Returns the index of the word that holds the bit of `page`.
pub(crate) const fn word_of(page: Page) -> usize {
    usize_from(page.index() / WORD)
}

/// Returns the page of a word's lowest bit.
pub(crate) const fn first_of(index: usize) -> Page {
    Page::new((index as u64).saturating_mul(WORD))
}

/// Returns the bit of `page` in its word.
pub(crate) const fn bit_of(page: Page) -> u64 {
    1 << (page.index() % WORD)
}

/// Returns the bits of word `index` whose pages are in `range`.
pub(crate) fn mask_of(index: usize, range: PageRange) -> u64 {
    let first = first_of(index).index();
    let from = range.start().index().saturating_sub(first).min(WORD);
    let to = range.end().index().saturating_sub(first).min(WORD);
    bits_under(to) & !bits_under(from)
}

/// Returns the lowest `bits` bits; `bits` is at most 64.
pub(crate) const fn bits_under(bits: u64) -> u64 {
    if bits >= WORD {
        u64::MAX
    } else {
        (1 << bits) - 1
    }
}

/// Returns the lowest `bits` bits.
pub(crate) fn bits_below(bits: u32) -> u64 {
    bits_under(u64::from(bits))
}

/// Returns all bits from number `bit` on; none for 64 or more.
pub(crate) fn bits_from(bit: u32) -> u64 {
    !bits_below(bit)
}

/// Returns `ones`, limited to `max`.
pub(crate) fn at_most(ones: u32, max: u64) -> u32 {
    u32::try_from(max).map_or(ones, |max| ones.min(max))
}

pub(crate) fn count(bits: u64) -> u64 {
    u64::from(bits.count_ones())
}
