//! Breaking superpages into smaller leaves, and putting them together again.

use thiserror::Error;

use crate::address::{ENTRIES, Frame, Gfn, GfnRange, Level, MAX_PAGES};
use crate::atomic::{AtomicU64, Ordering, relax};
use crate::entry::Entry;
use crate::guest::{Guest, View};
use crate::host_memory::Memory;
use crate::tlb_flush::Flush;
use crate::walk::{Node, Position, gfn_of, replace};

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

/// Why leaves were not put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MergeError {
    /// No leaves of one size below, or not all present, alike, and of adjacent host frames.
    #[error("merging the leaves at {0}: they are not whole, alike and adjacent")]
    Unlike(Gfn),
    /// The dirty log needs small leaves.
    #[error("merging the leaves at {0}: their writes are logged; stop the log there first")]
    Logged(Gfn),
    /// The processor has no such leaves, the level has none, or the address is not aligned to them, or
    /// beyond what four levels of tables translate.
    #[error("merging the leaves at {0} to {1:?}: no such leaf can be there")]
    Level(Gfn, Level),
    /// Memory for the reverse map.
    #[error("merging the leaves at {0}: no frame left for the reverse map")]
    NoMemory(Gfn),
    /// There is no such view.
    #[error("merging in view {}: there is no such view", .0.number())]
    NoView(View),
}

impl<M: Memory> Guest<M> {
    /// Breaks superpages until the leaf for `at`, if there is one, is not larger than `to`.
    ///
    /// # Errors
    ///
    /// See [`SplitError`].
    pub fn split(&self, view: View, at: Gfn, to: Level) -> Result<Flush, SplitError> {
        if !at.is_translated() {
            return Err(SplitError::OutOfRange(at));
        }
        let mut flush = self.no_flush();
        loop {
            let _inside = self.walkers.enter();
            let position = self.walk(view, at, to).ok_or(SplitError::NoView(view))?;
            if position.entry.is_busy() {
                relax();
            } else if position.level <= to || position.entry == Entry::ABSENT {
                return Ok(flush);
            } else {
                let start = at.align_down(position.level);
                self.split_at(start, &position)?;
                flush.add(
                    view.bit(),
                    GfnRange::from_len(start, position.level.pages()),
                );
            }
        }
    }

    /// Breaks one leaf, or one device mark, in two levels' sizes. Does nothing if it changed meanwhile.
    ///
    /// The pieces allow no more than the leaf did, and map the same frames: a processor that goes on
    /// using the leaf does no harm until one of the pieces is changed, and whoever changes it flushes
    /// an address that the leaf covers.
    pub(crate) fn split_at(&self, start: Gfn, position: &Position<'_>) -> Result<(), SplitError> {
        let Some(below) = position.level.below() else {
            return Ok(());
        };
        let no_memory = SplitError::NoMemory(start);
        let nested = position.location.is_nested();
        let node = self.new_table(nested).map_err(|_| no_memory)?;
        if !position.replace(Entry::BUSY) {
            self.free_node(node);
            return Ok(());
        }
        // Nobody else changes this entry now, and no processor sets its flags.
        let leaf = position.entry;
        if leaf.is_mmio() {
            for slot in self.memory.table(node.table) {
                slot.store(Entry::MMIO.0, Ordering::Relaxed);
            }
        } else {
            let gfn = position.gfn(start);
            if let Err(seen) = self.fill_pieces(node, leaf, below, gfn) {
                position.slot.store(leaf.0, Ordering::Release);
                if seen {
                    self.abandon(node);
                } else {
                    self.free_node(node);
                }
                return Err(no_memory);
            }
            self.rmap
                .remove(&self.memory, position.level, gfn, position.location);
        }
        position.set_origins_of(node);
        position
            .slot
            .store(Entry::table(node.table).0, Ordering::Release);
        Ok(())
    }

    /// Writes the pieces of a leaf for `gfn` into a new table, and adds them to the reverse map; all or,
    /// without memory, none. The error: whether visitors may have seen the table.
    fn fill_pieces(&self, node: Node, leaf: Entry, below: Level, gfn: Gfn) -> Result<(), bool> {
        let nested = node.origins.is_some();
        let mut spare = self
            .rmap
            .reserve(&self.memory, below, gfn)
            .map_err(|_| false)?;
        let piece = |index: usize| gfn.plus(index as u64 * below.pages());
        let mut done = Ok(());
        for index in 0..ENTRIES {
            let span = GfnRange::from_len(piece(index), below.pages());
            let entry = self.armed(leaf.piece(below, index as u64), below, span, nested);
            // Before it is in the reverse map: a visitor may change it from then on.
            node.slot(&self.memory, index)
                .store(entry.0, Ordering::Release);
            if let Some(origin) = node.origin(&self.memory, index) {
                origin.store(piece(index).index() + 1, Ordering::Release);
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

    /// Puts the leaves below together to one at `level` around `at`: they must be all there, of one
    /// size, alike, and map adjacent host frames. The flags of the new leaf are the old ones' together.
    ///
    /// # Errors
    ///
    /// See [`MergeError`]; nothing has changed then.
    pub fn merge(&self, view: View, at: Gfn, level: Level) -> Result<Flush, MergeError> {
        let offered = match level {
            Level::Large => self.capabilities.large,
            Level::Huge => self.capabilities.huge,
            _ => false,
        };
        let Some(below) = level
            .below()
            .filter(|_| offered && at.is_aligned(level) && at.is_translated())
        else {
            return Err(MergeError::Level(at, level));
        };
        let mut flush = self.no_flush();
        let _inside = self.walkers.enter();
        loop {
            let position = self.walk(view, at, level).ok_or(MergeError::NoView(view))?;
            if position.entry.is_busy() {
                relax();
                continue;
            }
            if position.level != level || !position.entry.is_table(level) {
                return Err(MergeError::Unlike(at));
            }
            let nested = position.location.is_nested();
            let _merging = nested.then(|| self.merges.begin());
            if position.replace(Entry::BUSY) {
                return match self.merge_table(at, &position, below) {
                    Ok(node) => {
                        flush.add(view.bit(), GfnRange::from_len(at, level.pages()));
                        self.retire(&mut flush, node);
                        Ok(flush)
                    }
                    Err(error) => {
                        position.slot.store(position.entry.0, Ordering::Release);
                        Err(error)
                    }
                };
            }
        }
    }

    /// With the entry above busy: checks and kills the leaves one by one, and writes the large one.
    /// Threads that are in the table already find dead entries, and start again at the root; so does a
    /// processor that has cached the way here, with an exit.
    fn merge_table(
        &self,
        at: Gfn,
        position: &Position<'_>,
        below: Level,
    ) -> Result<Node, MergeError> {
        // The entry is busy, so its origin stands still.
        let node = Node {
            table: position.entry.frame(),
            origins: position
                .origin
                .map(|word| Frame::containing(word.load(Ordering::Acquire))),
        };
        let gfn_at = |index: usize, at: Gfn| gfn_of(node.origin(&self.memory, index), at);
        let gfn = gfn_at(0, at);
        let head = Entry(node.slot(&self.memory, 0).load(Ordering::Acquire));
        let aligned = head.is_leaf(below)
            && head.frame().is_aligned(position.level)
            && gfn.is_aligned(position.level);
        if !aligned {
            return Err(MergeError::Unlike(at));
        }
        // Not only if the leaves say so: a log may be starting, and not have come to them yet.
        let span = GfnRange::from_len(gfn, position.level.pages()).intersect(self.all());
        if self.log.form().is_some() && self.log.tracked.any(span) {
            return Err(MergeError::Logged(at));
        }
        let mut killed = [Entry::ABSENT; ENTRIES];
        let mut merged = head.grown().with_accessed(false).with_dirty(false);
        let mut outcome = Ok(());
        let mut count = 0;
        while outcome.is_ok() && count < ENTRIES {
            let slot = node.slot(&self.memory, count);
            let offset = count as u64 * below.pages();
            let expected = (head.frame().plus(offset), gfn.plus(offset));
            match kill_alike(slot, below, head) {
                // What is dead is not mapped anew: the origin stands still.
                Ok(leaf) if (leaf.frame(), gfn_at(count, at.plus(offset))) == expected => {
                    merged = merged
                        .with_accessed(merged.accessed() || leaf.accessed())
                        .with_dirty(merged.dirty() || leaf.dirty());
                    killed[count] = leaf;
                    count += 1;
                }
                Ok(leaf) => {
                    slot.store(leaf.0, Ordering::Release);
                    outcome = Err(MergeError::Unlike(at));
                }
                Err(true) => outcome = Err(MergeError::Logged(at)),
                Err(false) => outcome = Err(MergeError::Unlike(at)),
            }
        }
        if outcome.is_ok() {
            outcome = self
                .rmap
                .add(&self.memory, position.level, gfn, position.location)
                .map_err(|_| MergeError::NoMemory(at));
        }
        if let Err(error) = outcome {
            for (index, leaf) in killed.iter().enumerate().take(count) {
                node.slot(&self.memory, index)
                    .store(leaf.0, Ordering::Release);
            }
            return Err(error);
        }
        for index in 0..ENTRIES {
            let piece = gfn.plus(index as u64 * below.pages());
            self.rmap
                .remove(&self.memory, below, piece, node.location(index));
        }
        position.set_gfn(gfn);
        // A log may be on beside these pages: PML has to know that they are none of its.
        let nested = node.origins.is_some();
        let merged = self.armed(merged, position.level, span, nested);
        position.slot.store(merged.0, Ordering::Release);
        Ok(node)
    }
}

/// Kills a leaf that is like `head`; `Err(true)` if it is logged, `Err(false)` if it is unlike.
fn kill_alike(slot: &AtomicU64, level: Level, head: Entry) -> Result<Entry, bool> {
    loop {
        let entry = Entry(slot.load(Ordering::Acquire));
        if entry.is_busy() {
            relax();
        } else if entry.is_logged() {
            return Err(true);
        } else if !entry.is_leaf(level) || entry.traits() != head.traits() {
            return Err(false);
        } else if replace(slot, entry, Entry::DEAD) {
            return Ok(entry);
        }
    }
}
