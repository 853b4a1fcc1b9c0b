//! Assembles huge pages.
//!
//! The kernel installs a huge page whole or not at all, but it travels in 4 KiB pieces that urgent
//! pages can overtake. The pieces are assembled here, in any order and from any link (`slots.rs`),
//! in buffers that are mapped when post-copy is prepared and take memory when they are first used.
//!
//! **How many.** A source completes a huge page before it begins another on the same link (see
//! `hikkoshi_wire`), so there are at most as many incomplete ones as links and unanswered requests.
//! Requests are limited here (`admission.rs`). Slots are also provided for what may be in flight on
//! a link, and for one complete page that is being cleared. A peer that still finds no slot breaks
//! this rule, and is refused.

use hikkoshi_linux::Errno;
use hikkoshi_pages::{PAGE_BYTES, PAGE_SIZE, Page, PageRange, RamLayout};
use hikkoshi_userfault::PageBuffer;

use crate::destination::install_error::TooManyPartial;
use crate::destination::postcopy::huge::slots::SlotTable;

/// Huge pages of one size that are requested at once take at most this many bytes, but one is
/// always possible.
const MAX_REQUESTED_BYTES: u64 = 64 << 20;

/// At most this many huge pages are requested at once.
const MAX_REQUESTED: u64 = 32;

/// A link may have pieces of this many bytes of huge pages in flight: with several links taking
/// turns in one huge page, a slow link may delay some.
const IN_FLIGHT_BYTES: u64 = 16 << 20;

/// The most gaps of a huge page that are requested separately.
pub(crate) const GAPS: usize = 16;

/// How much to provide for huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Bytes in a huge page.
    pub(crate) host_page: u64,
    /// Huge pages that are requested at once.
    pub(crate) requested: u64,
    /// Huge pages that may be incomplete at once, and one that is being cleared.
    pub(crate) slots: u64,
}

impl Size {
    /// For each size of huge pages in `layout`, with a source that sends over `links` background
    /// links.
    pub(crate) fn all(layout: &RamLayout, links: u16) -> Vec<Self> {
        let mut sizes: Vec<Self> = Vec::new();
        for (block, _) in layout.blocks() {
            let host_page = block.host_page;
            if host_page == PAGE_BYTES {
                continue;
            }
            let there = block.bytes / host_page;
            match sizes.iter_mut().find(|size| size.host_page == host_page) {
                Some(size) => size.slots += there,
                None => sizes.push(Self {
                    host_page,
                    requested: (MAX_REQUESTED_BYTES / host_page).clamp(1, MAX_REQUESTED),
                    slots: there,
                }),
            }
        }
        for size in &mut sizes {
            let a_link = (IN_FLIGHT_BYTES / size.host_page).max(1);
            let most = u64::from(links) * a_link + size.requested + 1;
            // Not more than exist.
            size.slots = size.slots.min(most);
            size.requested = size.requested.min(size.slots);
        }
        sizes
    }

    /// Memory for assembling huge pages, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.host_page.saturating_mul(self.slots)
    }
}

/// Huge pages of one size that have arrived in part.
#[derive(Debug)]
pub(crate) struct Staging {
    slots: SlotTable,
    buffers: Box<[PageBuffer]>,
    /// Whether a buffer is returned to the system after each use.
    clears_after_use: bool,
}

/// A complete huge page. Its buffer is free again when this is dropped: remove the page from the
/// missing set before.
#[derive(Debug)]
pub(crate) struct CompletePage<'a> {
    staging: &'a Staging,
    slot: usize,
}

impl CompletePage<'_> {
    /// Its content.
    pub(crate) fn buffer(&self) -> Option<&PageBuffer> {
        self.staging.buffers.get(self.slot)
    }
}

impl Drop for CompletePage<'_> {
    fn drop(&mut self) {
        self.staging.leave(self.slot, true);
    }
}

impl Staging {
    /// # Errors
    /// When there is no address space for the buffers.
    pub(crate) fn new(size: Size) -> Result<Self, Errno> {
        let bytes = usize::try_from(size.host_page).map_err(|_| Errno::NOMEM)?;
        let slots = usize::try_from(size.slots).map_err(|_| Errno::NOMEM)?;
        Ok(Self {
            slots: SlotTable::new(size.host_page / PAGE_BYTES, slots),
            buffers: (0..slots)
                .map(|_| PageBuffer::new(bytes))
                .collect::<Result<_, _>>()?,
            clears_after_use: size.host_page > MAX_REQUESTED_BYTES,
        })
    }

    /// Adds `piece` of the huge page `whole`; returns the page when that completed it. A piece that
    /// arrives twice is taken once. `missing` returns whether the huge page has not been received
    /// yet.
    pub(crate) fn add(
        &self,
        whole: PageRange,
        piece: PageRange,
        content: &[u8],
        missing: impl Fn() -> bool,
    ) -> Result<Option<CompletePage<'_>>, TooManyPartial> {
        let slot = self.slots.enter(whole.start())?;
        // It may have been completed since the caller checked, and its slot left.
        if !missing() {
            self.leave(slot, true);
            return Ok(None);
        }
        let place = |page: Page| page.index() - whole.start().index();
        let piece = PageRange::from_len(Page::new(place(piece.start())), piece.len());
        let mut written = 0;
        while let Some(run) = self.slots.claim(slot, piece) {
            self.write(slot, run, piece, content);
            written += run.len();
        }
        if written > 0 && self.slots.written(slot, written) {
            return Ok(Some(CompletePage {
                staging: self,
                slot,
            }));
        }
        self.leave(slot, false);
        Ok(None)
    }

    /// Calls `each` with the parts of the huge page `whole` that have not arrived: up to [`GAPS`]
    /// ranges, the last of which may include some that have.
    pub(crate) fn gaps(&self, whole: PageRange, mut each: impl FnMut(PageRange)) {
        let Some(slot) = self.slots.enter_existing(whole.start()) else {
            each(whole);
            return;
        };
        if let Some(missing) = self.slots.missing(slot) {
            let there = |range: PageRange| {
                PageRange::from_len(
                    whole.start().saturating_add(range.start().index()),
                    range.len(),
                )
            };
            let mut last: Option<PageRange> = None;
            for (number, run) in missing.runs(missing.all()).enumerate() {
                last = match last {
                    Some(last) if number >= GAPS => Some(PageRange::new(last.start(), run.end())),
                    Some(last) => {
                        each(there(last));
                        Some(run)
                    }
                    None => Some(run),
                };
            }
            // Nothing: all of it has been claimed and is being written.
            if let Some(last) = last {
                each(there(last));
            }
        }
        self.leave(slot, false);
    }

    /// Drops all pieces.
    pub(crate) fn drop_all(&self) {
        for start in self.slots.partial() {
            if let Some(slot) = self.slots.enter_existing(start) {
                self.leave(slot, true);
            }
        }
    }

    fn write(&self, slot: usize, run: PageRange, piece: PageRange, content: &[u8]) {
        let bytes = |range: PageRange| usize::try_from(range.bytes()).unwrap_or(usize::MAX);
        let skip = bytes(PageRange::new(piece.start(), run.start()));
        let part = content
            .get(skip..)
            .and_then(|rest| rest.get(..bytes(run)))
            .unwrap_or_default();
        let at = usize::try_from(run.start().index()).unwrap_or(usize::MAX / PAGE_SIZE) * PAGE_SIZE;
        let fits = self
            .buffers
            .get(slot)
            .is_some_and(|buffer| buffer.write(at, part));
        debug_assert!(fits && part.len() == bytes(run));
    }

    fn leave(&self, slot: usize, done: bool) {
        self.slots.leave(slot, done, || {
            if self.clears_after_use
                && let Some(buffer) = self.buffers.get(slot)
            {
                buffer.clear();
            }
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
