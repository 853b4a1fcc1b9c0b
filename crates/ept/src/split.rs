//! Breaking superpages into smaller leaves, and putting them together again.

use thiserror::Error;

use crate::address::{ENTRIES, Frame, Gfn, GfnRange, Level};
use crate::atomic::{Ordering, relax};
use crate::entry::Entry;
use crate::flush::Flush;
use crate::guest::{Guest, View};
use crate::memory::Memory;
use crate::rmap::Location;
use crate::walk::{Position, replace};

/// Why a superpage was not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SplitError {
    /// Memory for the table.
    #[error("splitting the superpage at {0}: no frame left for its table; free some and try again")]
    NoMemory(Gfn),
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
    /// The processor has no such leaves, the level has none, or the address is not aligned to them.
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
        let mut flush = Flush::none();
        loop {
            let _inside = self.walkers.enter();
            let position = self.walk(view, at, to).ok_or(SplitError::NoView(view))?;
            if position.entry.is_busy() {
                relax();
            } else if position.level <= to || position.entry == Entry::ABSENT {
                return Ok(flush);
            } else {
                let start = at.align_down(position.level);
                self.split_at(view, start, &position)?;
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
    pub(crate) fn split_at(
        &self,
        view: View,
        start: Gfn,
        position: &Position<'_>,
    ) -> Result<(), SplitError> {
        let Some(below) = position.level.below() else {
            return Ok(());
        };
        let no_memory = SplitError::NoMemory(start);
        let nested = self.is_nested(view);
        let table = self.new_table(nested).map_err(|_| no_memory)?;
        if !position.replace(Entry::BUSY) {
            self.free_table(table);
            return Ok(());
        }
        // Nobody else changes this entry now, and no processor sets its flags.
        let leaf = position.entry;
        if leaf.is_mmio() {
            for slot in self.memory.table(table) {
                slot.store(Entry::MMIO.0, Ordering::Relaxed);
            }
            position
                .slot
                .store(Entry::table(table).0, Ordering::Release);
            return Ok(());
        }
        let gfn = self.gfn_at(view, position.location, start);
        if self.rmap.reserve(&self.memory, below, gfn).is_err() {
            position.slot.store(leaf.0, Ordering::Release);
            self.free_table(table);
            return Err(no_memory);
        }
        for index in 0..ENTRIES {
            let location = Location::new(table, index);
            let piece = gfn.plus(index as u64 * below.pages());
            let span = GfnRange::from_len(piece, below.pages());
            let entry = self.armed(leaf.piece(below, index as u64), below, span, nested);
            // Before it is in the reverse map: a visitor may change it from then on.
            location
                .slot(&self.memory)
                .store(entry.0, Ordering::Release);
            if nested {
                self.set_origin(location, piece);
            }
            if self.rmap.add(&self.memory, below, piece, location).is_err() {
                self.give_up_split(table, index, gfn, below);
                position.slot.store(leaf.0, Ordering::Release);
                return Err(no_memory);
            }
        }
        self.rmap
            .remove(&self.memory, position.level, gfn, position.location);
        position
            .slot
            .store(Entry::table(table).0, Ordering::Release);
        Ok(())
    }

    /// Takes the first `count` pieces out of the reverse map again. Their table is lost: a visitor may
    /// be looking at it, and this cannot wait. It happens only when the heap has no memory for a chain.
    fn give_up_split(&self, table: Frame, count: usize, gfn: Gfn, below: Level) {
        for index in 0..count {
            let piece = gfn.plus(index as u64 * below.pages());
            self.rmap
                .remove(&self.memory, below, piece, Location::new(table, index));
        }
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
        let Some(below) = level.below().filter(|_| offered && at.is_aligned(level)) else {
            return Err(MergeError::Level(at, level));
        };
        let mut flush = Flush::none();
        let _inside = self.walkers.enter();
        loop {
            let position = self.walk(view, at, level).ok_or(MergeError::NoView(view))?;
            if position.entry.is_busy() {
                relax();
            } else if position.level != level || !position.entry.is_table(level) {
                return Err(MergeError::Unlike(at));
            } else if position.replace(Entry::BUSY) {
                let table = position.entry.frame();
                return match self.merge_table(view, at, &position, below) {
                    Ok(()) => {
                        flush.add(view.bit(), GfnRange::from_len(at, level.pages()));
                        self.retire(&mut flush, table);
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
        view: View,
        at: Gfn,
        position: &Position<'_>,
        below: Level,
    ) -> Result<(), MergeError> {
        let table = position.entry.frame();
        let first = Location::new(table, 0);
        let gfn = self.gfn_at(view, first, at);
        let head = Entry(first.slot(&self.memory).load(Ordering::Acquire));
        let aligned = head.is_leaf(below)
            && head.frame().is_aligned(position.level)
            && gfn.is_aligned(position.level);
        if !aligned {
            return Err(MergeError::Unlike(at));
        }
        let mut killed = [Entry::ABSENT; ENTRIES];
        let mut merged = head.grown().with_accessed(false).with_dirty(false);
        let mut outcome = Ok(());
        let mut count = 0;
        while outcome.is_ok() && count < ENTRIES {
            let location = Location::new(table, count);
            let offset = count as u64 * below.pages();
            let expected = (head.frame().plus(offset), gfn.plus(offset));
            let here = self.gfn_at(view, location, at.plus(offset));
            match self.kill_alike(location, below, head) {
                Ok(leaf) if (leaf.frame(), here) == expected => {
                    merged = merged
                        .with_accessed(merged.accessed() || leaf.accessed())
                        .with_dirty(merged.dirty() || leaf.dirty());
                    killed[count] = leaf;
                    count += 1;
                }
                Ok(leaf) => {
                    location.slot(&self.memory).store(leaf.0, Ordering::Release);
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
                Location::new(table, index)
                    .slot(&self.memory)
                    .store(leaf.0, Ordering::Release);
            }
            return Err(error);
        }
        for index in 0..ENTRIES {
            let piece = gfn.plus(index as u64 * below.pages());
            self.rmap
                .remove(&self.memory, below, piece, Location::new(table, index));
        }
        if self.is_nested(view) {
            self.set_origin(position.location, gfn);
        }
        position.slot.store(merged.0, Ordering::Release);
        Ok(())
    }

    /// Kills a leaf that is like `head`; `Err(true)` if it is logged, `Err(false)` if it is unlike.
    fn kill_alike(&self, location: Location, level: Level, head: Entry) -> Result<Entry, bool> {
        let slot = location.slot(&self.memory);
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
}
