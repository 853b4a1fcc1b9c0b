//! Scanning dirty flags of the non-nested views, for
//! [`LogMethod::DirtyFlags`](super::LogMethod::DirtyFlags).

use crate::address::{ENTRIES, GfnRange, Level, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::bitmap::{WORD, ones, word_and_bit, words_of};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::{HostMemory, Table};
use crate::view::View;
use crate::walk::{load_unfrozen, try_replace};

/// Pages that are scanned together: those of one page table, and at least one bitmap word.
pub(super) const GROUP: u64 = if Level::Size2M.pages() > WORD {
    Level::Size2M.pages()
} else {
    WORD
};
/// Bitmap words of a group.
const WORDS: usize = usize_from(GROUP / WORD);

/// The bitmap words of one group.
pub(super) struct Group {
    first: usize,
    bits: [u64; WORDS],
}

impl Group {
    /// Returns the tracked pages of `part`, which must be in one group.
    fn tracked<M: HostMemory>(guest: &Guest<M>, part: GfnRange) -> Self {
        let mut group = Self::empty(part);
        for (word, mask) in words_of(part) {
            group.bits[word - group.first] = mask & guest.log.tracked.word(word);
        }
        group
    }

    fn empty(part: GfnRange) -> Self {
        Self {
            first: usize_from(part.start().index() / GROUP) * WORDS,
            bits: [0; WORDS],
        }
    }

    /// Iterates over the words with tracked pages: index, tracked bits, and bits of `found`.
    pub(super) fn words(&self, found: &Self) -> impl Iterator<Item = (usize, u64, u64)> {
        let bits = self.bits.iter().zip(&found.bits);
        (self.first..)
            .zip(bits)
            .map(|(word, (mask, found))| (word, *mask, *found))
            .filter(|(_, mask, _)| *mask != 0)
    }
}

impl<M: HostMemory> Guest<M> {
    /// Returns the tracked pages of `part`, which must be in one group, and those of them whose
    /// dirty flag is set in a non-nested view. With `clear`, clears the flags. Returns `None` if no
    /// page is tracked. The caller holds an RCU read guard.
    ///
    /// If a view has a page table for the part, the scan reads that table. Otherwise it uses the
    /// reverse map: a table may have just been detached, with its flags not yet saved.
    pub(super) fn scan_flags(
        &self,
        views: u64,
        part: GfnRange,
        clear: bool,
    ) -> Option<(Group, Group)> {
        let tracked = Group::tracked(self, part);
        if tracked.bits == [0; WORDS] {
            return None;
        }
        let mut dirty = Group::empty(part);
        for number in ones(views) {
            #[allow(clippy::cast_possible_truncation)] // below 64
            let view = View::numbered(number as u8);
            for table in part.chunks(Level::Size2M.pages()) {
                let Some(found) = self.walk(view, table.start(), Level::Size4K) else {
                    break;
                };
                if found.level == Level::Size4K {
                    let slots = self.memory.table(found.location.table());
                    scan_table(slots, table, &tracked, &mut dirty, clear);
                } else {
                    self.rmap.for_each_in(
                        &self.memory,
                        Level::Size4K,
                        table,
                        &mut |gfn, location| {
                            if !location.is_nested() {
                                let (word, bit) = word_and_bit(gfn);
                                let place = word - tracked.first;
                                if tracked.bits[place] & bit != 0
                                    && test_flag(location.slot(&self.memory), clear)
                                {
                                    dirty.bits[place] |= bit;
                                }
                            }
                        },
                    );
                }
            }
        }
        Some((tracked, dirty))
    }
}

/// Adds the tracked pages of `part` whose dirty flag is set to `dirty`. `slots` is the page table
/// that maps them.
fn scan_table(slots: &Table, part: GfnRange, tracked: &Group, dirty: &mut Group, clear: bool) {
    for (word, mask) in words_of(part) {
        let place = word - tracked.first;
        let mask = mask & tracked.bits[place];
        if mask == 0 {
            continue;
        }
        // A word's entries are a part of the table, or (in loom models) all of it.
        let first = (word as u64 * WORD).max(part.start().align_down(Level::Size2M).index());
        let index = usize_from(first) % ENTRIES;
        let slots = &slots[index..index + ENTRIES.min(usize_from(WORD))];
        if all_clean(slots) {
            continue;
        }
        let shift = first % WORD;
        for bit in ones(mask & maybe_dirty(slots) << shift) {
            if test_flag(&slots[usize_from(bit - shift)], clear) {
                dirty.bits[place] |= 1 << bit;
            }
        }
    }
}

/// Whether none of these entries has its dirty flag set or is being changed. Each is read once, and
/// no other test is made, because nearly all entries of most guests are clean.
fn all_clean(slots: &[AtomicU64]) -> bool {
    let bits = slots
        .iter()
        .fold(0, |bits, slot| bits | slot.load(Ordering::Acquire));
    !Entry(bits).may_be_dirty()
}

/// Returns a bit for each of these entries that has its dirty flag set or is being changed.
fn maybe_dirty(slots: &[AtomicU64]) -> u64 {
    slots.iter().rev().fold(0, |bits, slot| {
        let entry = Entry(slot.load(Ordering::Acquire));
        bits << 1 | u64::from(entry.may_be_dirty())
    })
}

/// Returns whether a logged leaf has its dirty flag set. With `clear`, clears the flag.
fn test_flag(slot: &AtomicU64, clear: bool) -> bool {
    loop {
        let old = load_unfrozen(slot);
        if !old.is_logged() || !old.dirty() {
            return false;
        }
        if !clear || try_replace(slot, old, old.with_dirty(false)) {
            return true;
        }
    }
}
