//! The oldest way: `KVM_GET_DIRTY_LOG` reads the bitmap of a slot, clears it and protects its pages
//! again, all of them.

use hikkoshi_pages::{PageBitmap, PageRange};

use super::capability::MANUAL_PROTECT;
use super::ioctl::get_dirty_log;
use super::method::Method;
use super::slots::{MemorySlot, MemorySlots};
use super::words::{add, clip, word_count, words_of};
use crate::capability_error::CapabilityError;
use crate::log::DirtyError;

#[derive(Debug)]
pub(super) struct Bitmap {
    buffer: SlotWords,
}

impl Bitmap {
    pub(super) fn new(slots: &MemorySlots) -> Result<Self, CapabilityError> {
        // Manual protection stays enabled in a VM for which it was enabled before.
        if MANUAL_PROTECT.offered(slots.vm()) != 0 {
            MANUAL_PROTECT.enable(slots.vm(), 0)?;
        }
        Ok(Self {
            buffer: SlotWords::new(slots),
        })
    }
}

impl Method for Bitmap {
    fn collect(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
    ) -> Result<(), DirtyError> {
        for (slot, _) in slots.parts(range) {
            let words = self.buffer.read(slots, slot, slot.pages())?;
            add(pending, slot.first_page, words);
        }
        Ok(())
    }

    fn stop(&mut self, _: &MemorySlots) -> Result<(), DirtyError> {
        Ok(())
    }
}

/// A buffer for the bitmap of one slot at a time.
#[derive(Debug)]
pub(super) struct SlotWords {
    words: Box<[u64]>,
}

impl SlotWords {
    pub(super) fn new(slots: &MemorySlots) -> Self {
        let most = slots.iter().map(|slot| slot.pages().len()).max();
        Self {
            words: vec![0; word_count(most.unwrap_or(0))].into(),
        }
    }

    /// Reads the bitmap of a slot. Returns the words of `part`, without the bits outside it.
    pub(super) fn read(
        &mut self,
        slots: &MemorySlots,
        slot: &MemorySlot,
        part: PageRange,
    ) -> Result<&[u64], DirtyError> {
        get_dirty_log(slots.vm(), slot, &mut self.words).map_err(|source| DirtyError::KvmSlot {
            call: "KVM_GET_DIRTY_LOG",
            slot: slot.region.slot,
            source,
        })?;
        let of_part = words_of(slot.pages(), part);
        let words = self.words.get_mut(of_part).unwrap_or(&mut []);
        clip(words, slot.pages(), part);
        Ok(words)
    }
}
