//! The page bitmap: one atomic bit for each page, and the claim of a page.

use std::fmt;

use crate::atomic::{AtomicU64, Ordering};
use crate::runs::Runs;
use crate::words::{WORD, at_most, bit_of, bits_below, count, first_of, mask_of, word_of};
use crate::{Page, PageRange, usize_from};

/// One bit for each page, shared between threads without a lock.
///
/// Every change is a single atomic operation on one 64-bit word. A call on one page is therefore
/// atomic. A call on a range is atomic for each page, but not for the whole range: other threads
/// can make changes between two words.
///
/// # Memory order
///
/// The engine relies on the following: *a thread that wins a page by [`claim`](Self::claim),
/// [`claim_run`](Self::claim_run) or [`clear_range`](Self::clear_range), or sees it by
/// [`get`](Self::get), sees everything that the thread which set the bit did before it set the
/// bit.* The setter releases (`fetch_or`), the winner acquires. Other threads may have changed
/// other bits of the word in between. This does not break the guarantee, because **every** change
/// of a shared word is a read-modify-write operation, which continues the release sequence of the
/// setter. A plain store would break it, so there is none.
///
/// Clearing also releases and setting also acquires, so the same holds in the other direction: a
/// thread that finds a page clear and sets it again sees what the last winner did before it won. On
/// x86-64 and with arm64's atomic instructions this has no extra cost.
///
/// A failed claim only guarantees that the page was not available.
///
/// # Pages beyond the end
///
/// There is no set bit at or after page number [`pages`](Self::pages), and no call sets one: ranges
/// are clipped, and a single page there is never set and never won.
///
/// # Example
///
/// Several threads claim the same pages; each page has one winner.
///
/// ```
/// use hikkoshi_pages::PageBitmap;
/// use std::thread;
///
/// let unsent = PageBitmap::full(10_000);
/// let send = || unsent.all().iter().filter(|&page| unsent.claim(page)).count();
/// let sent: usize = thread::scope(|scope| {
///     let senders: Vec<_> = (0..4).map(|_| scope.spawn(send)).collect();
///     senders.into_iter().map(|sender| sender.join().unwrap()).sum()
/// });
/// assert_eq!(sent, 10_000);
/// assert_eq!(unsent.count(), 0);
/// ```
pub struct PageBitmap {
    pages: u64,
    words: Box<[AtomicU64]>,
}

impl PageBitmap {
    /// Creates a bitmap for `pages` pages, none of them set. It uses one eighth of a byte for each
    /// page.
    #[must_use]
    pub fn empty(pages: u64) -> Self {
        Self::filled(pages, 0)
    }

    /// Creates a bitmap for `pages` pages, all of them set.
    #[must_use]
    pub fn full(pages: u64) -> Self {
        Self::filled(pages, u64::MAX)
    }

    fn filled(pages: u64, word: u64) -> Self {
        let all = PageRange::from_len(Page::new(0), pages);
        let words = (0..usize_from(pages.div_ceil(WORD)))
            .map(|index| AtomicU64::new(word & mask_of(index, all)))
            .collect();
        Self { pages, words }
    }

    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the range of all pages.
    #[must_use]
    pub fn all(&self) -> PageRange {
        PageRange::from_len(Page::new(0), self.pages)
    }

    /// Whether `page` is set.
    #[must_use]
    pub fn get(&self, page: Page) -> bool {
        self.word(page)
            .is_some_and(|word| word.load(Ordering::Acquire) & bit_of(page) != 0)
    }

    /// Sets `page`; returns whether it was clear.
    ///
    /// Publishes what the caller did before, even if the page was already set: see *Memory order*
    /// above.
    pub fn set(&self, page: Page) -> bool {
        self.word(page)
            .is_some_and(|word| word.fetch_or(bit_of(page), Ordering::AcqRel) & bit_of(page) == 0)
    }

    /// Clears `page`; returns whether it was set, that is, whether the caller has won it. If
    /// several threads claim a set page, exactly one wins.
    #[must_use = "a page that was won must be sent"]
    pub fn claim(&self, page: Page) -> bool {
        let bit = bit_of(page);
        self.word(page).is_some_and(|word| {
            // The load avoids a write to the cache line if the claim cannot succeed. Relaxed is
            // enough: coherence alone makes a `set` that happened before this call visible, and a
            // failed claim gives no guarantee.
            word.load(Ordering::Relaxed) & bit != 0
                && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
        })
    }

    /// Sets every page of `range`; returns how many of them were clear.
    pub fn set_range(&self, range: PageRange) -> u64 {
        self.words_of(range)
            .map(|(word, mask)| count(mask & !word.fetch_or(mask, Ordering::AcqRel)))
            .sum()
    }

    /// Clears every page of `range`; returns how many of them were set.
    pub fn clear_range(&self, range: PageRange) -> u64 {
        self.words_of(range)
            .map(|(word, mask)| count(mask & word.fetch_and(!mask, Ordering::AcqRel)))
            .sum()
    }

    /// Returns the number of set pages. Exact if no other thread changes the bitmap meanwhile;
    /// otherwise each word is counted as it was at some time during the call.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count_range(self.all())
    }

    /// Returns the number of set pages in `range`; as exact as [`count`](Self::count).
    #[must_use]
    pub fn count_range(&self, range: PageRange) -> u64 {
        self.words_of(range)
            .map(|(word, mask)| count(mask & word.load(Ordering::Acquire)))
            .sum()
    }

    /// Whether any page in `range` is set; reads only up to the first one.
    #[must_use]
    pub fn any(&self, range: PageRange) -> bool {
        self.words_of(range)
            .any(|(word, mask)| mask & word.load(Ordering::Acquire) != 0)
    }

    /// Claims the beginning of the first run of set pages inside `from`: up to `max` adjacent
    /// pages. Returns exactly the pages that were won, at least one, or `None` if no page inside
    /// `from` could be won (or `max` is 0).
    ///
    /// Never clears a page that it does not return, not even temporarily: a page request that
    /// arrives meanwhile must not see a page as claimed if no thread has won it. Therefore this
    /// uses compare-and-swap, and does not clear bits and set some of them again. Lock-free: a
    /// failed swap means that another thread has changed the word.
    ///
    /// If another thread wins a page meanwhile, the run ends before that page. Pages that are set
    /// behind the position of the search are not found.
    #[must_use = "pages that were won must be sent"]
    pub fn claim_run(&self, from: PageRange, max: u64) -> Option<PageRange> {
        let from = from.intersect(self.all());
        if from.is_empty() || max == 0 {
            return None;
        }
        let last = word_of(Page::new(from.end().index() - 1));
        for index in word_of(from.start())..=last {
            let Some((first, mut pages)) = self.claim_first(index, mask_of(index, from), max)
            else {
                continue;
            };
            let start = first_of(index).saturating_add(first);
            // If the run reaches the end of its word, it may continue in the next one.
            let mut next = index + 1;
            while pages < max && next <= last && start.index() + pages == first_of(next).index() {
                let won = self.claim_prefix(next, mask_of(next, from), max - pages);
                if won == 0 {
                    break;
                }
                pages += won;
                next += 1;
            }
            return Some(PageRange::from_len(start, pages));
        }
        None
    }

    /// Iterates over the maximal runs of set pages in `range`, in ascending order, word by word.
    ///
    /// This is not a snapshot: each word is read once, when the iterator reaches it. A page that
    /// does not change during the iteration is reported correctly; a page that changes may be
    /// reported as set or as clear. Nothing is claimed.
    #[must_use]
    pub fn runs(&self, range: PageRange) -> Runs<'_> {
        Runs::new(self, range.intersect(self.all()))
    }

    /// Returns the number of words, for [`load_word`](Self::load_word) and similar calls.
    #[must_use]
    pub fn word_count(&self) -> usize {
        self.words.len()
    }

    /// Returns the bits of pages `64 * index` to `64 * index + 63`, lowest first; 0 beyond the end.
    #[must_use]
    pub fn load_word(&self, index: usize) -> u64 {
        self.words
            .get(index)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Sets the pages whose bits are set in `bits`; returns those that were clear. Bits after the
    /// last page are ignored, so the last word of a KVM dirty bitmap can be passed unchanged.
    pub fn or_word(&self, index: usize, bits: u64) -> u64 {
        let bits = bits & mask_of(index, self.all());
        self.words
            .get(index)
            .map_or(0, |word| bits & !word.fetch_or(bits, Ordering::AcqRel))
    }

    /// Returns the bits of one word that are in `range`.
    pub(crate) fn load_masked(&self, index: usize, range: PageRange) -> u64 {
        self.load_word(index) & mask_of(index, range)
    }

    fn word(&self, page: Page) -> Option<&AtomicU64> {
        // The last word has bits after the last page; they stay clear.
        if page.index() < self.pages {
            self.words.get(word_of(page))
        } else {
            None
        }
    }

    /// Returns the words that overlap `range`, each with the mask of its bits in the range.
    fn words_of(&self, range: PageRange) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let range = range.intersect(self.all());
        let first = word_of(range.start());
        let words = if range.is_empty() {
            &[]
        } else {
            let last = word_of(Page::new(range.end().index() - 1));
            self.words.get(first..=last).unwrap_or(&[])
        };
        words
            .iter()
            .zip(first..)
            .map(move |(word, index)| (word, mask_of(index, range)))
    }

    /// Claims the lowest run of set bits in `mask`, at most `max` of them. Returns its first bit
    /// and its length.
    fn claim_first(&self, index: usize, mask: u64, max: u64) -> Option<(u64, u64)> {
        let word = self.words.get(index)?;
        let mut seen = word.load(Ordering::Relaxed);
        while seen & mask != 0 {
            let first = (seen & mask).trailing_zeros();
            let ones = at_most(((seen & mask) >> first).trailing_ones(), max);
            let run = bits_below(ones) << first;
            match word.compare_exchange_weak(seen, seen & !run, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some((u64::from(first), u64::from(ones))),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// Claims the run of set bits in `mask` that begins at bit 0, at most `max` of them. Returns
    /// its length, which is 0 if bit 0 could not be won.
    fn claim_prefix(&self, index: usize, mask: u64, max: u64) -> u64 {
        let Some(word) = self.words.get(index) else {
            return 0;
        };
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let ones = at_most((seen & mask).trailing_ones(), max);
            if ones == 0 {
                return 0;
            }
            match word.compare_exchange_weak(
                seen,
                seen & !bits_below(ones),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return u64::from(ones),
                Err(now) => seen = now,
            }
        }
    }
}

impl fmt::Debug for PageBitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Do not print the words: there can be gigabytes.
        f.debug_struct("PageBitmap")
            .field("pages", &self.pages)
            .field("set", &self.count())
            .finish()
    }
}
