//! Scanning dirty flags of the non-nested views, for
//! [`LogMethod::DirtyFlags`](super::LogMethod::DirtyFlags).

use crate::address::{GfnRange, Level, usize_from};
use crate::atomic::{AtomicU64, Ordering};
use crate::bitmap::{WORD, ones, words_of};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
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
        let mut scan = |at: u64, slot: &AtomicU64| {
            let word = usize_from(at / WORD) - tracked.first;
            let bit = 1 << (at % WORD);
            if tracked.bits[word] & bit != 0 && test_flag(slot, clear) {
                dirty.bits[word] |= bit;
            }
        };
        for number in ones(views) {
            #[allow(clippy::cast_possible_truncation)] // below 64
            let view = View::numbered(number as u8);
            for table in part.chunks(Level::Size2M.pages()) {
                let Some(found) = self.walk(view, table.start(), Level::Size4K) else {
                    break;
                };
                if found.level == Level::Size4K {
                    let slots = self.memory.table(found.location.table());
                    for (gfn, slot) in table.iter().zip(&slots[found.location.index()..]) {
                        scan(gfn.index(), slot);
                    }
                } else {
                    self.rmap.for_each_in(
                        &self.memory,
                        Level::Size4K,
                        table,
                        &mut |gfn, location| {
                            if !location.is_nested() {
                                scan(gfn.index(), location.slot(&self.memory));
                            }
                        },
                    );
                }
            }
        }
        Some((tracked, dirty))
    }
}

/// Returns whether a logged leaf has its dirty flag set. With `clear`, clears the flag.
fn test_flag(slot: &AtomicU64, clear: bool) -> bool {
    // Fast path: most leaves are clean.
    let first = Entry(slot.load(Ordering::Acquire));
    if first.is_present() && !first.dirty() {
        return false;
    }
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
