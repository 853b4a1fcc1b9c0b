//! Breaking superpages into smaller leaves, and putting them together again.

use thiserror::Error;

use crate::address::{ENTRIES, Frame, Gfn, GfnRange, Level, MAX_PAGES};
use crate::atomic::{AtomicU64, Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::{Guest, View};
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;
use crate::walk::{EntryRef, Node, mapped_gfn, try_replace};

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

    /// Puts the leaves below together to one at `level` around `at`: they must be all there, of one
    /// size, alike, and map adjacent host frames. The flags of the new leaf are the old ones' together.
    ///
    /// # Errors
    ///
    /// See [`MergeError`]; nothing has changed then.
    pub fn merge(&self, view: View, at: Gfn, level: Level) -> Result<TlbFlush, MergeError> {
        let offered = match level {
            Level::Size2M => self.capabilities.pages_2m,
            Level::Size1G => self.capabilities.pages_1g,
            _ => false,
        };
        let Some(below) = level
            .below()
            .filter(|_| offered && at.is_aligned(level) && at.is_translated())
        else {
            return Err(MergeError::Level(at, level));
        };
        let mut flush = self.empty_flush();
        let _guard = self.rcu.read();
        loop {
            let found = self.walk(view, at, level).ok_or(MergeError::NoView(view))?;
            if found.entry.is_frozen() {
                cpu_relax();
                continue;
            }
            if found.level != level || !found.entry.is_table(level) {
                return Err(MergeError::Unlike(at));
            }
            let nested = found.location.is_nested();
            let _merging = nested.then(|| self.merge_seq.begin());
            if found.try_replace(Entry::FROZEN) {
                return match self.merge_table(at, &found, below) {
                    Ok(node) => {
                        flush.add(view.bit(), GfnRange::from_len(at, level.pages()));
                        self.retire(&mut flush, node);
                        Ok(flush)
                    }
                    Err(error) => {
                        found.slot.store(found.entry.0, Ordering::Release);
                        Err(error)
                    }
                };
            }
        }
    }

    /// With the entry above busy: checks and kills the leaves one by one, and writes the large one.
    /// Threads that are in the table already find dead entries, and start again at the root; so does a
    /// processor that has cached the way here, with an exit.
    fn merge_table(&self, at: Gfn, found: &EntryRef<'_>, below: Level) -> Result<Node, MergeError> {
        // The entry is busy, so its origin stands still.
        let node = Node {
            table: found.entry.frame(),
            gfn_table: found
                .gfn_word
                .map(|word| Frame::containing(word.load(Ordering::Acquire))),
        };
        let gfn_at = |index: usize, at: Gfn| mapped_gfn(node.gfn_word(&self.memory, index), at);
        let gfn = gfn_at(0, at);
        let head = Entry(node.slot(&self.memory, 0).load(Ordering::Acquire));
        let aligned = head.is_leaf(below)
            && head.frame().is_aligned(found.level)
            && gfn.is_aligned(found.level);
        if !aligned {
            return Err(MergeError::Unlike(at));
        }
        // Not only if the leaves say so: a log may be starting, and not have come to them yet.
        let span = GfnRange::from_len(gfn, found.level.pages()).intersect(self.all());
        if self.log.method().is_some() && self.log.tracked.any(span) {
            return Err(MergeError::Logged(at));
        }
        let mut killed = [Entry::ABSENT; ENTRIES];
        let mut merged = head.parent_leaf().with_accessed(false).with_dirty(false);
        let mut outcome = Ok(());
        let mut count = 0;
        while outcome.is_ok() && count < ENTRIES {
            let slot = node.slot(&self.memory, count);
            let offset = count as u64 * below.pages();
            let expected = (head.frame().plus(offset), gfn.plus(offset));
            match detach_if_alike(slot, below, head) {
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
                .add(&self.memory, found.level, gfn, found.location)
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
        found.set_gfn(gfn);
        // A log may be on beside these pages: PML has to know that they are none of its.
        let nested = node.gfn_table.is_some();
        let merged = self.arm_leaf(merged, found.level, span, nested);
        found.slot.store(merged.0, Ordering::Release);
        Ok(node)
    }
}

/// Kills a leaf that is like `head`; `Err(true)` if it is logged, `Err(false)` if it is unlike.
fn detach_if_alike(slot: &AtomicU64, level: Level, head: Entry) -> Result<Entry, bool> {
    loop {
        let entry = Entry(slot.load(Ordering::Acquire));
        if entry.is_frozen() {
            cpu_relax();
        } else if entry.is_logged() {
            return Err(true);
        } else if !entry.is_leaf(level) || entry.attributes() != head.attributes() {
            return Err(false);
        } else if try_replace(slot, entry, Entry::DETACHED) {
            return Ok(entry);
        }
    }
}
