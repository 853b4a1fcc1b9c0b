//! Breaking superpages into smaller leaves, and putting them together again.

use thiserror::Error;

use crate::address::{ENTRIES, Gfn, GfnRange, Level, MAX_PAGES};
use crate::atomic::{Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::{EntryRef, Node};

/// Why a superpage was not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SplitError {
    /// Memory for the table.
    #[error("splitting the superpage at {0}: no frame left for its table; free some and try again")]
    NoMemory(Gfn),
    /// Four levels of tables end before.
    #[error("splitting up to {0}: addresses have 48 bits; {MAX_PAGES} frames is all there can be")]
    OutOfRange(Gfn),
    /// There is no such view.
    #[error("splitting in view {}: there is no such view", .0.number())]
    NoView(View),
}

impl<M: HostMemory> Guest<M> {
    /// Breaks superpages until the leaf for `at`, if there is one, is not larger than `to`.
    ///
    /// # Errors
    ///
    /// See [`SplitError`].
    pub fn split(&self, view: View, at: Gfn, to: Level) -> Result<TlbFlush, SplitError> {
        if !at.is_translated() {
            return Err(SplitError::OutOfRange(at));
        }
        let mut flush = self.empty_flush();
        loop {
            let _guard = self.rcu.read();
            let found = self.walk(view, at, to).ok_or(SplitError::NoView(view))?;
            if found.entry.is_frozen() {
                cpu_relax();
            } else if found.level <= to || found.entry == Entry::ABSENT {
                return Ok(flush);
            } else {
                let start = at.align_down(found.level);
                self.split_at(start, &found)?;
                flush.add(view.bit(), GfnRange::from_len(start, found.level.pages()));
            }
        }
    }

    /// Breaks one leaf, or one device mark, in two levels' sizes. Does nothing if it changed meanwhile.
    ///
    /// The pieces allow no more than the leaf did, and map the same frames: a processor that goes on
    /// using the leaf does no harm until one of the pieces is changed, and whoever changes it flushes
    /// an address that the leaf covers.
    pub(crate) fn split_at(&self, start: Gfn, found: &EntryRef<'_>) -> Result<(), SplitError> {
        let Some(below) = found.level.below() else {
            return Ok(());
        };
        let no_memory = SplitError::NoMemory(start);
        let nested = found.location.is_nested();
        let node = self.new_table(nested).map_err(|_| no_memory)?;
        if !found.try_replace(Entry::FROZEN) {
            self.free_node(node);
            return Ok(());
        }
        // Nobody else changes this entry now, and no processor sets its flags.
        let leaf = found.entry;
        if leaf.is_mmio() {
            for slot in self.memory.table(node.table) {
                slot.store(Entry::MMIO.0, Ordering::Relaxed);
            }
        } else {
            let gfn = found.gfn(start);
            if let Err(seen) = self.fill_split_table(node, leaf, below, gfn) {
                found.slot.store(leaf.0, Ordering::Release);
                if seen {
                    self.abandon(node);
                } else {
                    self.free_node(node);
                }
                return Err(no_memory);
            }
            self.rmap
                .remove(&self.memory, found.level, gfn, found.location);
        }
        found.set_gfn_table(node);
        found
            .slot
            .store(Entry::table(node.table).0, Ordering::Release);
        Ok(())
    }

    /// Writes the pieces of a leaf for `gfn` into a new table, and adds them to the reverse map; all or,
    /// without memory, none. The error: whether visitors may have seen the table.
    fn fill_split_table(
        &self,
        node: Node,
        leaf: Entry,
        below: Level,
        gfn: Gfn,
    ) -> Result<(), bool> {
        let nested = node.gfn_table.is_some();
        let mut spare = self
            .rmap
            .reserve(&self.memory, below, gfn)
            .map_err(|_| false)?;
        let piece = |index: usize| gfn.plus(index as u64 * below.pages());
        let mut done = Ok(());
        for index in 0..ENTRIES {
            let span = GfnRange::from_len(piece(index), below.pages());
            let entry = self.arm_leaf(leaf.child_leaf(below, index as u64), below, span, nested);
            // Before it is in the reverse map: a visitor may change it from then on.
            node.slot(&self.memory, index)
                .store(entry.0, Ordering::Release);
            if let Some(gfn_word) = node.gfn_word(&self.memory, index) {
                gfn_word.store(piece(index).index() + 1, Ordering::Release);
            }
            let location = node.location(index);
            let added = self
                .rmap
                .add_with(&self.memory, below, piece(index), location, &mut spare);
            if added.is_err() {
                for index in 0..index {
                    let location = node.location(index);
                    self.rmap
                        .remove(&self.memory, below, piece(index), location);
                }
                done = Err(true);
                break;
            }
        }
        self.rmap.give_back(&self.memory, spare);
        done
    }
}
