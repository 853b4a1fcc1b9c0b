//! Comparing what the source sends with what is in the RAM files.
//!
//! For a page that is there before it was installed: if the source sends zeros,
//! nothing of what it sends is missing there, whatever was written since.

use std::sync::atomic::{AtomicU64, Ordering};

use hikkoshi_pages::{PAGE_SIZE, PageRange, is_zero};

use crate::files::RamFiles;

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// The content of pages, from the first on.
pub trait Content {
    /// Whether page number `nth` of this is zeros, or just what `page` in the
    /// RAM file holds.
    fn is_in_page(&self, nth: usize, page: &[u8; PAGE_SIZE]) -> bool;

    /// Whether nothing of this is missing in `pages` of the RAM files. `false` as
    /// well when they cannot be read.
    fn is_in(&self, ram: &RamFiles, pages: PageRange) -> bool {
        let mut page = [0; PAGE_SIZE];
        pages.iter().enumerate().all(|(nth, number)| {
            match ram.read(PageRange::one(number), &mut page) {
                Ok(()) => self.is_in_page(nth, &page),
                Err(error) => {
                    tracing::warn!(%error, page = number.index(), "reading a page that is there");
                    false
                }
            }
        })
    }
}

impl Content for [u8] {
    fn is_in_page(&self, nth: usize, page: &[u8; PAGE_SIZE]) -> bool {
        self.chunks_exact(PAGE_SIZE)
            .nth(nth)
            .is_some_and(|sent| is_zero(sent) || sent == page)
    }
}

/// A [`PageBuffer`](hikkoshi_userfault::PageBuffer)'s words.
impl Content for [AtomicU64] {
    fn is_in_page(&self, nth: usize, page: &[u8; PAGE_SIZE]) -> bool {
        let (words, _) = page.as_chunks::<WORD>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        self.chunks_exact(PAGE_SIZE / WORD)
            .nth(nth)
            .is_some_and(|sent| {
                let sent = || sent.iter().map(|word| word.load(Ordering::Relaxed));
                sent().all(|word| word == 0) || sent().eq(words)
            })
    }
}
