//! Manual protection: `KVM_GET_DIRTY_LOG` only reads the bitmap of a slot, and
//! `KVM_CLEAR_DIRTY_LOG` clears the pages that it is given, and protects them again.
//!
//! The kernel reads whole words of 64 pages, but clears only the pages whose bits are set. So
//! a range may begin and end anywhere.

use hikkoshi_pages::{PageBitmap, PageRange};

use super::bitmap::SlotWords;
use super::capability::MANUAL_PROTECT;
use super::ioctl::clear_dirty_log;
use super::method::Method;
use super::slots::{MemorySlot, MemorySlots};
use super::words::{WORD, add, words_of};
use crate::capability_error::CapabilityError;
use crate::log::DirtyError;

/// Number of words that one call clears: 1 GiB. It limits how long the kernel holds the lock of the
/// guest's page tables, which page faults wait for.
const CLEAR_WORDS: usize = 1 << 12;

#[derive(Debug)]
pub(super) struct ManualProtect {
    buffer: SlotWords,
    /// Every page counts as dirty at first.
    initially_set: bool,
}

impl ManualProtect {
    pub(super) fn new(slots: &MemorySlots) -> Result<Self, CapabilityError> {
        let offered = MANUAL_PROTECT.require(slots.vm())?;
        let wanted = kvm_bindings::KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE
            | kvm_bindings::KVM_DIRTY_LOG_INITIALLY_SET;
        let enabled = offered & wanted;
        MANUAL_PROTECT.enable(slots.vm(), enabled.into())?;
        Ok(Self {
            buffer: SlotWords::new(slots),
            initially_set: enabled & kvm_bindings::KVM_DIRTY_LOG_INITIALLY_SET != 0,
        })
    }
}

impl Method for ManualProtect {
    fn collect(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
    ) -> Result<(), DirtyError> {
        for (slot, part) in slots.parts(range) {
            let first_word = words_of(slot.pages(), part).start as u64;
            let words = self.buffer.read(slots, slot, part)?;
            for (chunk, first_word) in words
                .chunks(CLEAR_WORDS)
                .zip((first_word..).step_by(CLEAR_WORDS))
            {
                clear(slots, slot, first_word, chunk, pending)?;
            }
        }
        Ok(())
    }

    /// Only reads: what is not cleared need not be protected again.
    fn peek(
        &mut self,
        slots: &MemorySlots,
        range: PageRange,
        pending: &PageBitmap,
        dirty: &mut dyn FnMut(PageRange),
    ) -> Result<(), DirtyError> {
        let all = PageBitmap::empty(pending.pages());
        for run in pending.runs(range) {
            all.set_range(run);
        }
        for (slot, part) in slots.parts(range) {
            let first_word = words_of(slot.pages(), part).start as u64;
            let first = slot.first_page.saturating_add(first_word * WORD);
            add(&all, first, self.buffer.read(slots, slot, part)?);
        }
        all.runs(range).for_each(dirty);
        Ok(())
    }

    fn starts_clean(&self) -> bool {
        !self.initially_set
    }

    fn stop(&mut self, slots: &MemorySlots) -> Result<(), DirtyError> {
        MANUAL_PROTECT.enable(slots.vm(), 0)?;
        Ok(())
    }
}

/// Clears the pages of `words` in the kernel's log, and then makes them pending. The first word is
/// number `first_word` of the slot.
fn clear(
    slots: &MemorySlots,
    slot: &MemorySlot,
    first_word: u64,
    words: &[u64],
    pending: &PageBitmap,
) -> Result<(), DirtyError> {
    let is_dirty = |word: &u64| *word != 0;
    let Some(clean) = words.iter().position(is_dirty) else {
        return Ok(());
    };
    let end = words
        .iter()
        .rposition(is_dirty)
        .map_or(clean, |last| last + 1);
    let words = words.get(clean..end).unwrap_or(&[]);
    let first_page = (first_word + clean as u64) * WORD;
    // The last word of a slot may be a part of one.
    let pages = (words.len() as u64 * WORD).min(slot.pages().len() - first_page);
    u32::try_from(pages)
        .map_err(std::io::Error::other)
        .and_then(|pages| clear_dirty_log(slots.vm(), slot.region.slot, first_page, pages, words))
        .map_err(|source| DirtyError::KvmSlot {
            call: "KVM_CLEAR_DIRTY_LOG",
            slot: slot.region.slot,
            source,
        })?;
    add(pending, slot.first_page.saturating_add(first_page), words);
    Ok(())
}
