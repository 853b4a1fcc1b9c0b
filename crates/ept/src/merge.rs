//! Merging.

use thiserror::Error;

use crate::address::{ENTRIES, Frame, Gfn, GfnRange, Level};
use crate::atomic::{AtomicU64, Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::{EntryRef, Node, mapped_gfn, try_replace};

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
