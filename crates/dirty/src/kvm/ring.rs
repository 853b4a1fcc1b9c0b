//! Dirty rings: each processor has a ring into which KVM writes the pages that it dirties. The
//! entries are harvested and then reset (`KVM_RESET_DIRTY_RINGS`), which protects the pages again.
//!
//! A ring has no order of pages, so all rings are harvested into the bitmap, and the range is taken
//! from there.

use std::sync::Arc;

use hikkoshi_pages::{PageBitmap, PageRange};

use super::bitmap::SlotWords;
use super::ioctl::reset_dirty_rings;
use super::method::{KvmStartError, Method};
use super::ring_memory::DirtyPage;
use super::rings::DirtyRings;
use super::slots::MemorySlots;
use super::words::add;
use crate::log::DirtyError;

#[derive(Debug)]
pub(super) struct Ring {
    rings: Arc<DirtyRings>,
    /// Entries that were harvested and not reset yet. Their pages are not protected, so no other
    /// thread may take them.
    harvested: Vec<DirtyPage>,
    /// For the bitmap beside the rings, if there is one.
    bitmap: Option<SlotWords>,
}

impl Ring {
    pub(super) fn new(slots: &MemorySlots, rings: Arc<DirtyRings>) -> Result<Self, KvmStartError> {
        let bitmap = rings.with_bitmap().then(|| SlotWords::new(slots));
        let mut ring = Self {
            rings,
            harvested: Vec::new(),
            bitmap,
        };
        // What an earlier log has left there.
        ring.reset(slots).map_err(KvmStartError::Rings)?;
        ring.harvested.clear();
        Ok(ring)
    }

    /// Harvests and resets all rings.
    fn reset(&mut self, slots: &MemorySlots) -> Result<(), DirtyError> {
        self.rings.harvest(&mut self.harvested);
        if self.harvested.is_empty() {
            return Ok(());
        }
        reset_dirty_rings(slots.vm()).map_err(|source| DirtyError::KvmRings { source })
    }
}

impl Method for Ring {
    fn collect(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
    ) -> Result<(), DirtyError> {
        self.reset(slots)?;
        for page in self.harvested.drain(..) {
            // A slot of the monitor's that is not migrated may be logged, too.
            if let Some(pages) = slots.pages_of(page.slot)
                && page.offset < pages.len()
            {
                pending.set(pages.start().saturating_add(page.offset));
            }
        }
        if let Some(bitmap) = &mut self.bitmap {
            for (slot, _) in slots.parts(range) {
                let words = bitmap.read(slots, slot, slot.pages())?;
                add(pending, slot.first_page, words);
            }
        }
        Ok(())
    }

    /// Logging has ended, so this empties the rings for good: a processor whose ring stays full
    /// cannot run.
    fn stop(&mut self, slots: &MemorySlots) -> Result<(), DirtyError> {
        self.reset(slots)?;
        self.harvested.clear();
        Ok(())
    }
}
