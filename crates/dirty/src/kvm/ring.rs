//! Dirty rings: each processor has a ring into which KVM writes the pages that it dirties. The
//! entries are harvested and then reset (`KVM_RESET_DIRTY_RINGS`), which protects the pages again.
//!
//! A ring has no order of pages, so all rings are harvested into the bitmap, and the range is taken
//! from there.

use std::sync::Arc;

use hikkoshi_pages::{PageBitmap, PageRange};

use super::bitmap::SlotWords;
use super::ioctl::reset_dirty_rings;
use super::log::{KvmStartError, Method};
use super::rings::DirtyRings;
use super::slots::MemorySlots;
use super::words::add;
use crate::log::DirtyError;

#[derive(Debug)]
pub(super) struct Ring {
    rings: Arc<DirtyRings>,
    /// Whether entries were harvested and not reset since: their pages are not protected.
    harvested: bool,
    /// For the bitmap beside the rings, if there is one.
    bitmap: Option<SlotWords>,
}

impl Ring {
    pub(super) fn new(slots: &MemorySlots, rings: Arc<DirtyRings>) -> Result<Self, KvmStartError> {
        let bitmap = rings.with_bitmap().then(|| SlotWords::new(slots));
        let mut ring = Self {
            rings,
            harvested: false,
            bitmap,
        };
        // What an earlier log has left there.
        ring.reset(slots, |_, _| ()).map_err(KvmStartError::Rings)?;
        Ok(ring)
    }

    /// Harvests and resets all rings. `dirty` gets the number of a slot and of a page in the slot.
    fn reset(
        &mut self,
        slots: &MemorySlots,
        mut dirty: impl FnMut(u32, u64),
    ) -> Result<(), DirtyError> {
        self.harvested |= self.rings.harvest(|page| dirty(page.slot, page.offset));
        if self.harvested {
            reset_dirty_rings(slots.vm()).map_err(|source| DirtyError::KvmRings { source })?;
            self.harvested = false;
        }
        Ok(())
    }
}

impl Method for Ring {
    fn collect(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
    ) -> Result<(), DirtyError> {
        self.reset(slots, |slot, offset| {
            // A slot of the monitor's that is not migrated may be logged, too.
            if let Some(pages) = slots.pages_of(slot)
                && offset < pages.len()
            {
                pending.set(pages.start().saturating_add(offset));
            }
        })?;
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
        self.reset(slots, |_, _| ())
    }
}
