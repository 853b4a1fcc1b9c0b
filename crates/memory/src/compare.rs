//! Comparing content that the source sends with guest memory.
//!
//! For a page that is present before it was installed. If the source sends zeros, the page lacks
//! nothing, whatever was written to it since.

use std::sync::atomic::{AtomicU64, Ordering};

use error_reporter::Report;
use hikkoshi_pages::{PAGE_SIZE, PageRange, is_zero};

use crate::guest_ram::GuestRam;

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// The content of consecutive pages.
pub trait Content {
    /// Whether page number `nth` of this content is zeros, or equal to `page`.
    fn is_in_page(&self, nth: usize, page: &[u8; PAGE_SIZE]) -> bool;

    /// Whether all of this content is in `pages` of the RAM files already. `false` also when they
    /// cannot be read.
    fn is_in(&self, ram: &GuestRam, pages: PageRange) -> bool {
        let mut page = [0; PAGE_SIZE];
        pages.iter().enumerate().all(|(nth, number)| {
            match ram.read(PageRange::one(number), &mut page) {
                Ok(()) => self.is_in_page(nth, &page),
                Err(error) => {
                    tracing::warn!(error = %Report::new(&error), page = number.index(), "reading a page that is there");
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
