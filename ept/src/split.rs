//! Splitting superpages into smaller leaves.

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
    /// There is not enough memory for the table.
    #[error(
        "cannot split the superpage at {0}: no free frame for its table; free some and try again"
    )]
    NoMemory(Gfn),
    /// Four table levels do not translate the address.
    #[error("address out of range: {0}; four table levels translate {MAX_PAGES} frames")]
    OutOfRange(Gfn),
    /// The view does not exist.
    #[error("cannot split leaves: view {} does not exist", .0.number())]
    NoView(View),
}

impl<M: HostMemory> Guest<M> {
    /// Splits superpages until the leaf for `at`, if there is one, is not larger than `to`.
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

    /// Splits one leaf, or one device mark, into entries one level down. Does nothing if the entry
    /// has changed meanwhile.
    ///
    /// The child leaves permit no more than the leaf did, and map the same frames. A processor that
    /// still uses the old leaf does no harm until a child leaf is changed, and that change flushes
    /// an address that the old leaf covers.
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
        // The entry is frozen: no other thread changes it, and no processor sets its flags.
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

    /// Writes the child leaves of a leaf for `gfn` into a new table and adds them to the reverse
    /// map: all of them or, if there is not enough memory, none. The error says whether other
    /// threads may have seen the table.
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
            // Write the leaf before it is added to the reverse map: from then on other threads may
            // change it.
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
