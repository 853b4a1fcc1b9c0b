//! Searches a page bitmap one word at a time.

use hikkoshi_pages::{Page, PageRange};

/// Pages in a word.
const WORD: u64 = u64::BITS as u64;

/// The words of a page bitmap that `range` touches: their numbers, and the bits
/// of each that lie in it.
pub(crate) fn words(range: PageRange) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (range.start().index(), range.end().index());
    (start / WORD..end.div_ceil(WORD)).filter_map(move |number| {
        let first = number * WORD;
        let from = start.saturating_sub(first).min(WORD);
        let to = (end - first).min(WORD);
        let below = |bits| {
            if bits == WORD {
                u64::MAX
            } else {
                (1u64 << bits) - 1
            }
        };
        Some((usize::try_from(number).ok()?, below(to) & !below(from)))
    })
}

/// The first run of set bits in `range`, up to the end of its word. `word` returns the
/// bitmap's words.
pub(crate) fn first_run(range: PageRange, word: impl Fn(usize) -> u64) -> Option<PageRange> {
    words(range).find_map(|(number, mask)| {
        let bits = word(number) & mask;
        (bits != 0).then(|| {
            let first = bits.trailing_zeros();
            let length = (bits >> first).trailing_ones();
            let start = Page::new(number as u64 * WORD + u64::from(first));
            PageRange::from_len(start, u64::from(length))
        })
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_pages::PageBitmap;

    fn range(from: u64, to: u64) -> PageRange {
        PageRange::new(Page::new(from), Page::new(to))
    }

    #[test]
    fn words_have_the_bits_of_their_range() {
        for (from, to) in [
            (0, 0),
            (0, 1),
            (63, 65),
            (0, 64),
            (64, 128),
            (5, 300),
            (7, 7),
        ] {
            let mut pages = Vec::new();
            for (number, mask) in words(range(from, to)) {
                pages.extend(
                    (0..64)
                        .filter(|bit| mask & (1 << bit) != 0)
                        .map(|bit| number as u64 * 64 + bit),
                );
            }
            assert_eq!(pages, (from..to).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_run_ends_with_its_word() {
        let bitmap = PageBitmap::empty(200);
        bitmap.set_range(range(60, 70));
        let first = |within| first_run(within, |number| bitmap.load_word(number));
        assert_eq!(first(range(0, 200)), Some(range(60, 64)));
        assert_eq!(first(range(64, 200)), Some(range(64, 70)));
        assert_eq!(first(range(61, 63)), Some(range(61, 63)));
        assert_eq!(first(range(70, 200)), None);
        assert_eq!(first(range(0, 0)), None);
    }
}
