//! Huge pages in pieces.
//!
//! The kernel installs a huge page whole or not at all, but it travels in
//! 4 KiB pieces that urgent pages can overtake. The pieces meet here, in any
//! order and from any link.

use std::collections::HashMap;
use std::sync::Mutex;

use hikkoshi_pages::{PAGE_SIZE, Page, PageBitmap, PageRange};
use thiserror::Error;

/// Huge pages that have arrived in part. Locked only to copy a piece in.
#[derive(Debug)]
pub(super) struct Staging {
    host_page: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    partial: HashMap<Page, Partial>,
    /// Buffers to be used again: getting 2 MiB from the system is slow.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Partial {
    content: Vec<u8>,
    missing: PageBitmap,
}

/// Huge pages that may be incomplete at once: the source has one under way on
/// the background link and one for each request that it is answering.
const PARTIAL: usize = 16;

/// Buffers kept for reuse.
const SPARE: usize = 2;

/// The peer began more huge pages than it finished.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the source sends pieces of more than {PARTIAL} huge pages at once")]
pub struct TooManyPartial;

impl Staging {
    /// Room for pages of up to `host_page` bytes, taken when needed.
    pub(super) fn new(host_page: usize) -> Self {
        Self {
            host_page,
            state: Mutex::default(),
        }
    }

    /// Adds `piece` of the huge page `whole`; gives the page's content when
    /// that made it complete. A piece that arrives twice is taken once.
    pub(super) fn add(
        &self,
        whole: PageRange,
        piece: PageRange,
        content: &[u8],
    ) -> Result<Option<Vec<u8>>, TooManyPartial> {
        let Ok(mut guard) = self.state.lock() else {
            // A thread died while it held the lock, and reported it.
            return Ok(None);
        };
        if guard.partial.len() >= PARTIAL && !guard.partial.contains_key(&whole.start()) {
            return Err(TooManyPartial);
        }
        Ok(guard.add(self.host_page, whole, piece, content))
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&self, mut buffer: Vec<u8>) {
        if let Ok(mut state) = self.state.lock()
            && state.spare.len() < SPARE
        {
            buffer.resize(self.host_page, 0);
            state.spare.push(buffer);
        }
    }
}

impl State {
    fn add(
        &mut self,
        host_page: usize,
        whole: PageRange,
        piece: PageRange,
        content: &[u8],
    ) -> Option<Vec<u8>> {
        let Self { partial, spare } = self;
        let entry = partial.entry(whole.start()).or_insert_with(|| Partial {
            content: spare.pop().unwrap_or_else(|| vec![0; host_page]),
            missing: PageBitmap::full(whole.len()),
        });
        let first = piece.start().index() - whole.start().index();
        let at = usize::try_from(first).ok()? * PAGE_SIZE;
        entry
            .content
            .get_mut(at..at + content.len())?
            .copy_from_slice(content);
        entry
            .missing
            .clear_range(PageRange::from_len(Page::new(first), piece.len()));
        if entry.missing.count() > 0 {
            return None;
        }
        let mut content = partial.remove(&whole.start())?.content;
        content.truncate(usize::try_from(whole.bytes()).ok()?);
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_meet_in_any_order() {
        let staging = Staging::new(512 * PAGE_SIZE);
        let whole = PageRange::from_len(Page::new(1024), 512);
        let mut pieces: Vec<_> = whole.chunks(7).collect();
        // Not random, but far from ascending.
        pieces.sort_by_key(|p| p.start().index() * 2_654_435_761 % 1009);
        let content = |page: Page| vec![(page.index() % 251) as u8; PAGE_SIZE];
        for round in 0..3 {
            let mut complete = None;
            for (n, &piece) in pieces.iter().enumerate() {
                assert!(complete.is_none(), "complete after {n} pieces");
                let bytes: Vec<u8> = piece.iter().flat_map(content).collect();
                complete = staging.add(whole, piece, &bytes).unwrap();
                if n == 3 {
                    let again = staging.add(whole, piece, &bytes).unwrap();
                    assert!(again.is_none(), "twice");
                }
            }
            let complete = complete.unwrap();
            let expected: Vec<u8> = whole.iter().flat_map(content).collect();
            assert_eq!(complete, expected, "round {round}");
            staging.give_back(complete);
        }
    }

    #[test]
    fn a_peer_cannot_fill_the_memory_with_pieces() {
        let staging = Staging::new(512 * PAGE_SIZE);
        let add = |huge: u64| {
            let whole = PageRange::from_len(Page::new(huge * 512), 512);
            staging.add(whole, PageRange::one(whole.start()), &[1; PAGE_SIZE])
        };
        for huge in 0..PARTIAL as u64 {
            assert_eq!(add(huge), Ok(None));
        }
        assert_eq!(add(PARTIAL as u64), Err(TooManyPartial));
        assert_eq!(add(0), Ok(None), "one that was begun goes on");
    }
}
