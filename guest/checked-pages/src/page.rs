//! The content of a checked page: every byte follows from the page's number and its generation.
//!
//! A page is 512 little-endian words: its number, its generation, a checksum over everything else,
//! and filling that is unique to page and generation. A page of kind [`PageKind::SometimesZero`] is
//! all zero in its even generations, so that pages alternate between zeros and content. The filling
//! of a page of kind [`PageKind::Repeating`] is three times the same, so that compression makes it
//! about a third as large.

use core::fmt;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;
/// Eight-byte words in a page.
pub const WORDS: usize = PAGE_SIZE / 8;

const NUMBER: usize = 0;
const GENERATION: usize = 1;
const CHECKSUM: usize = 2;
const FILLING: usize = 3;

/// A page as words.
pub type Words = [u64; WORDS];

/// The kind of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageKind {
    /// Always filled with content.
    Filled,
    /// All zero in even generations, filled in odd ones.
    SometimesZero,
    /// Always filled, with a filling that is repeated.
    Repeating,
}

impl PageKind {
    fn is_zero_at(self, generation: u32) -> bool {
        self == Self::SometimesZero && generation.is_multiple_of(2)
    }

    /// After so many words the filling begins again.
    fn period(self) -> usize {
        match self {
            Self::Filled | Self::SometimesZero => WORDS,
            Self::Repeating => (WORDS - FILLING).div_ceil(3),
        }
    }
}

/// A page with wrong content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadPage {
    /// The page's number.
    pub page: usize,
    /// The expected generation.
    pub generation: u32,
    /// The kind of damage.
    pub fault: Fault,
    /// The first wrong word.
    pub word: usize,
    /// Its content.
    pub held: u64,
    /// Its expected content.
    pub wanted: u64,
}

/// The kinds of damage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// All zero instead of content: the page was not received.
    Zero,
    /// A complete page of an earlier or later generation.
    Stale {
        /// The generation found.
        generation: u64,
    },
    /// A complete page with another number.
    Swapped {
        /// The number found.
        page: u64,
    },
    /// Any other content: torn between generations, or with wrong bytes.
    Corrupt,
    /// Content instead of zeros.
    NotZero,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zero"),
            Self::Stale { .. } => f.write_str("stale"),
            Self::Swapped { .. } => f.write_str("swapped"),
            Self::Corrupt => f.write_str("corrupt"),
            Self::NotZero => f.write_str("not-zero"),
        }
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The first word of the filling and the increment: one addition per word, because the guest's
/// processor may be emulated.
pub fn filling(page: u64, generation: u64) -> (u64, u64) {
    let first = mix(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(generation));
    (first, mix(first) | 1)
}

/// Adds a word to a checksum.
pub fn fold(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

/// The initial value of a checksum.
pub const SUM_START: u64 = 0xcbf2_9ce4_8422_2325;

fn checksum(words: &Words) -> u64 {
    let head = fold(fold(SUM_START, words[NUMBER]), words[GENERATION]);
    words[FILLING..].iter().copied().fold(head, fold)
}

/// Fills a page with its content in `generation`.
pub fn write(words: &mut Words, page: usize, generation: u32, kind: PageKind) {
    if kind.is_zero_at(generation) {
        words.fill(0);
        return;
    }
    let (page, generation) = (page as u64, u64::from(generation));
    let (first, step) = filling(page, generation);
    let mut sum = fold(fold(SUM_START, page), generation);
    words[NUMBER] = page;
    words[GENERATION] = generation;
    for part in words[FILLING..].chunks_mut(kind.period()) {
        let mut word = first;
        for slot in part {
            *slot = word;
            sum = fold(sum, word);
            word = word.wrapping_add(step);
        }
    }
    words[CHECKSUM] = sum;
}

/// The number and the generation of a complete page; `None` for a page that is torn or was never
/// written, or is of kind [`PageKind::Repeating`].
pub fn identify(words: &Words) -> Option<(u64, u64)> {
    let (page, generation) = (words[NUMBER], words[GENERATION]);
    let (mut wanted, step) = filling(page, generation);
    for &word in &words[FILLING..] {
        if word != wanted {
            return None;
        }
        wanted = wanted.wrapping_add(step);
    }
    (words[CHECKSUM] == checksum(words)).then_some((page, generation))
}

/// Checks every byte of a page against its expected content in `generation`.
///
/// # Errors
/// When a byte differs, with the kind of damage.
pub fn check(words: &Words, page: usize, generation: u32, kind: PageKind) -> Result<(), BadPage> {
    let bad = |fault, word, held, wanted| {
        Err(BadPage {
            page,
            generation,
            fault,
            word,
            held,
            wanted,
        })
    };
    if kind.is_zero_at(generation) {
        return match words.iter().position(|&word| word != 0) {
            None => Ok(()),
            Some(at) => bad(Fault::NotZero, at, words[at], 0),
        };
    }
    let (number, wanted_generation) = (page as u64, u64::from(generation));
    let (first, step) = filling(number, wanted_generation);
    let mut sum = fold(fold(SUM_START, number), wanted_generation);
    let mut differs = None;
    let mut at = FILLING;
    for part in words[FILLING..].chunks(kind.period()) {
        let mut wanted = first;
        for &word in part {
            if word != wanted && differs.is_none() {
                differs = Some((at, word, wanted));
            }
            sum = fold(sum, wanted);
            wanted = wanted.wrapping_add(step);
            at += 1;
        }
    }
    let head = [
        (NUMBER, number),
        (GENERATION, wanted_generation),
        (CHECKSUM, sum),
    ];
    let Some((at, held, wanted)) = head
        .into_iter()
        .map(|(at, wanted)| (at, words[at], wanted))
        .find(|&(_, held, wanted)| held != wanted)
        .or(differs)
    else {
        return Ok(());
    };
    bad(diagnose(words, number), at, held, wanted)
}

/// Classifies a page with wrong content.
fn diagnose(words: &Words, page: u64) -> Fault {
    if words.iter().all(|&word| word == 0) {
        Fault::Zero
    } else if words[CHECKSUM] != checksum(words) {
        Fault::Corrupt
    } else if words[NUMBER] != page {
        Fault::Swapped {
            page: words[NUMBER],
        }
    } else {
        Fault::Stale {
            generation: words[GENERATION],
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::boxed::Box;

    fn page_of(page: usize, generation: u32) -> Box<Words> {
        let mut words = Box::new([0; WORDS]);
        write(&mut words, page, generation, PageKind::Filled);
        words
    }

    fn fault(words: &Words, page: usize, generation: u32) -> Fault {
        check(words, page, generation, PageKind::Filled)
            .unwrap_err()
            .fault
    }

    #[test]
    fn a_written_page_is_valid() {
        for (page, generation) in [(0, 0), (0, 1), (1, 0), (7, 4_000_000_000), (1 << 40, 3)] {
            check(
                &page_of(page, generation),
                page,
                generation,
                PageKind::Filled,
            )
            .unwrap();
        }
    }

    #[test]
    fn a_repeating_page_is_checked_as_others_are() {
        let kind = PageKind::Repeating;
        let mut good = Box::new([0; WORDS]);
        write(&mut good, 5, 9, kind);
        check(&good, 5, 9, kind).unwrap();
        assert_eq!(good[FILLING], good[FILLING + kind.period()]);
        assert_eq!(good[FILLING], good[FILLING + 2 * kind.period()]);
        for bit in 0..PAGE_SIZE * 8 {
            let mut words = good.clone();
            words[bit / 64] ^= 1 << (bit % 64);
            let bad = check(&words, 5, 9, kind).unwrap_err();
            assert_eq!((bad.fault, bad.word), (Fault::Corrupt, bit / 64));
        }
        let mut stale = Box::new([0; WORDS]);
        write(&mut stale, 5, 8, kind);
        let bad = check(&stale, 5, 9, kind).unwrap_err();
        assert_eq!(bad.fault, Fault::Stale { generation: 8 });
        assert!(check(&page_of(5, 9), 5, 9, kind).is_err());
    }

    #[test]
    fn only_a_complete_page_is_identified() {
        assert_eq!(identify(&page_of(5, 9)), Some((5, 9)));
        assert_eq!(identify(&[0; WORDS]), None);
        let mut torn = page_of(5, 9);
        torn[256..].copy_from_slice(&page_of(5, 8)[256..]);
        assert_eq!(identify(&torn), None);
    }

    #[test]
    fn any_flipped_bit_is_detected() {
        let good = page_of(5, 9);
        for bit in 0..PAGE_SIZE * 8 {
            let mut words = good.clone();
            words[bit / 64] ^= 1 << (bit % 64);
            let bad = check(&words, 5, 9, PageKind::Filled).unwrap_err();
            assert_eq!(
                (bad.fault, bad.word, bad.held, bad.wanted),
                (Fault::Corrupt, bit / 64, words[bit / 64], good[bit / 64])
            );
        }
    }

    #[test]
    fn a_stale_generation_is_detected() {
        assert_eq!(fault(&page_of(5, 8), 5, 9), Fault::Stale { generation: 8 });
        assert_eq!(
            fault(&page_of(5, 10), 5, 9),
            Fault::Stale { generation: 10 }
        );
    }

    #[test]
    fn a_torn_page_is_detected() {
        let (old, new) = (page_of(5, 8), page_of(5, 9));
        // A cut after the first word changes nothing: the number is the same in both.
        for cut in 2..WORDS {
            let mut words = new.clone();
            words[cut..].copy_from_slice(&old[cut..]);
            assert_eq!(fault(&words, 5, 9), Fault::Corrupt, "new up to word {cut}");
            let mut words = old.clone();
            words[cut..].copy_from_slice(&new[cut..]);
            assert_eq!(fault(&words, 5, 9), Fault::Corrupt, "old up to word {cut}");
        }
    }

    #[test]
    fn a_zero_page_is_detected() {
        assert_eq!(fault(&[0; WORDS], 5, 9), Fault::Zero);
        assert_eq!(fault(&[0; WORDS], 0, 0), Fault::Zero, "even page 0 at 0");
    }

    #[test]
    fn a_swapped_page_is_detected() {
        assert_eq!(fault(&page_of(6, 9), 5, 9), Fault::Swapped { page: 6 });
    }

    #[test]
    fn a_page_that_should_be_zero_must_be_zero() {
        let kind = PageKind::SometimesZero;
        let mut words = page_of(3, 1);
        check(&words, 3, 1, kind).unwrap();
        let bad = check(&words, 3, 2, kind).unwrap_err();
        assert_eq!((bad.fault, bad.wanted), (Fault::NotZero, 0));
        write(&mut words, 3, 2, kind);
        assert!(words.iter().all(|&word| word == 0));
        check(&words, 3, 2, kind).unwrap();
        assert_eq!(
            check(&words, 3, 3, kind).unwrap_err().fault,
            Fault::Zero,
            "a zero page instead of content"
        );
        words[WORDS - 1] = 1;
        assert_eq!(check(&words, 3, 2, kind).unwrap_err().word, WORDS - 1);
    }
}
