//! Merging the leaves of a table into a superpage.

use thiserror::Error;

use crate::address::{ENTRIES, Gfn, GfnRange, HostFrame, Level};
use crate::atomic::{AtomicU64, Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::{EntryRef, Node, mapped_gfn, try_replace};

/// Why leaves were not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MergeError {
    /// The leaves are not all present, of the next smaller size, with the same attributes, and
    /// contiguous in host memory.
    #[error(
        "cannot merge the leaves at {0}: they are not all present, of one size, with the same attributes and contiguous"
    )]
    Unlike(Gfn),
    /// The dirty log requires 4 KiB leaves.
    #[error("cannot merge the leaves at {0}: their writes are logged; stop the log for them first")]
    Logged(Gfn),
    /// The processor does not support the leaf size, the level has no leaves, the address is not
    /// aligned to it, or four table levels do not translate the address.
    #[error("cannot merge the leaves at {0} into a leaf of {1}: not supported at this address")]
    Level(Gfn, Level),
    /// There is not enough memory for the reverse map.
    #[error("cannot merge the leaves at {0}: no free frame for the reverse map")]
    NoMemory(Gfn),
    /// The view does not exist.
    #[error("cannot merge leaves: view {} does not exist", .0.number())]
    NoView(View),
}

impl<M: HostMemory> Guest<M> {
    /// Merges the leaves of one table into one leaf at `level` that starts at `at`. All of them
    /// must be present, of the same size, with the same attributes, and contiguous in host memory.
    /// The accessed and dirty flags of the new leaf are the union of the old ones.
    ///
    /// # Errors
    ///
    /// See [`MergeError`]; on an error nothing has changed.
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

    /// While the parent entry is frozen: checks and detaches the leaves one by one, then writes the
    /// large leaf. Threads that are already in the table find detached entries and restart at the
    /// root. A processor that has cached the path to the table exits and retries.
    fn merge_table(&self, at: Gfn, found: &EntryRef<'_>, below: Level) -> Result<Node, MergeError> {
        // The parent entry is frozen, so the word in the GFN table does not change.
        let node = Node {
            table: found.entry.frame(),
            gfn_table: found
                .gfn_word
                .map(|word| HostFrame::containing(word.load(Ordering::Acquire))),
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
        // Check the tracked set, not only the leaves: a log that is starting may not have visited
        // them yet.
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
                // A detached entry is not mapped again, so its word in the GFN table does not
                // change.
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
        // A log may be active for other pages: PML must not log writes to these.
        let nested = node.gfn_table.is_some();
        let merged = self.arm_leaf(merged, found.level, span, nested);
        found.slot.store(merged.0, Ordering::Release);
        Ok(node)
    }
}

/// Detaches a leaf with the same attributes as `head`. Returns `Err(true)` if it is logged,
/// `Err(false)` if its attributes differ.
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
