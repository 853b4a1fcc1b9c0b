//! Unmapping: each level is walked once, and a table that is entirely in the range is detached as a
//! whole.

use crate::address::{ENTRIES, Gfn, GfnRange, INDEX_BITS, Level};
use crate::atomic::{Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::rmap::Location;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::{EntryRef, Node, load_unfrozen, mapped_gfn, try_replace};

/// An unmap operation in progress.
struct UnmapJob {
    view: View,
    range: GfnRange,
    flush: TlbFlush,
}

/// The first address of an entry that was found detached.
struct Detached(Gfn);

impl<M: HostMemory> Guest<M> {
    /// Unmaps `range` (addresses of the view): memory and device marks. A superpage that is partly
    /// in the range is split.
    ///
    /// A superpage costs one entry, not one for each page. A table that is entirely in the range is
    /// detached with one exchange; its entries then cost two words each. If there is no memory to
    /// split a superpage at the edge of the range, the whole superpage is unmapped: the guest
    /// faults there once more, and no data is lost. A device mark of that size stays in place
    /// instead, because the hypervisor could not restore it on a fault.
    pub fn unmap(&self, view: View, range: GfnRange) -> TlbFlush {
        let range = range.intersect(GfnRange::TRANSLATED);
        let mut job = UnmapJob {
            view,
            range,
            flush: self.empty_flush(),
        };
        // RCU synchronization waits for one GiB, not for the whole guest.
        self.for_each_gib(view, range, &mut |root, part| {
            self.unmap_part(&mut job, root, part);
        });
        if range.len() >= Level::Root.pages() {
            // Tables that cover 512 GiB, are empty by now and are entirely in the range.
            let _guard = self.rcu.read();
            if let Some(root) = self.root(view) {
                self.unmap_part(&mut job, root, range);
            }
        }
        job.flush
    }

    /// Unmaps the guest frames of `range` in all views, for a host that reclaims the memory. A
    /// superpage of a nested view is unmapped as a whole, even if it is only partly in the range.
    ///
    /// Mappings that other threads add meanwhile may remain.
    pub fn unmap_all_views(&self, range: GfnRange) -> TlbFlush {
        let mut flush = self.empty_flush();
        self.for_each_plain_view(|view| self.batch(&mut flush, self.unmap(view, range)));
        let before = self.nested_views();
        if before != 0 {
            for part in range.intersect(self.all()).chunks(Level::Size1G.pages()) {
                let _guard = self.rcu.read();
                self.unmap_nested(part);
            }
            // A nested view may have been added meanwhile.
            flush.add_whole_views(before | self.nested_views());
        }
        flush
    }

    /// Unmaps the guest frames of `range` from nested views. The caller holds an RCU read guard.
    fn unmap_nested(&self, range: GfnRange) {
        // From large to small: if a leaf is split meanwhile, its child leaves are found. A merge
        // moves leaves in the other direction, so the scan can miss them; and while a merge is in
        // progress there is no leaf. The sequence counter detects both.
        self.merge_seq.retry_if_merged(|| {
            for level in Level::LEAVES {
                self.rmap
                    .for_each_in(&self.memory, level, range, &mut |gfn, location| {
                        if location.is_nested() {
                            // If it fails, another thread has unmapped the leaf.
                            self.remove_leaf(location, level, gfn, Entry::ABSENT);
                        }
                    });
            }
        });
    }

    /// Unmaps `part`.
    ///
    /// A detached entry does not mean that nothing is mapped: the leaf may be in a merge, or its
    /// table was detached and replaced. The walk restarts at the root, for the addresses from that
    /// entry on. On that path the other thread holds an entry frozen, or has changed it already.
    fn unmap_part(&self, job: &mut UnmapJob, mut root: Node, part: GfnRange) {
        job.range = part;
        while let Err(Detached(at)) = self.unmap_in(job, root, Level::Root, Gfn::new(0)) {
            cpu_relax();
            job.range = GfnRange::new(at, part.end()).intersect(part);
            let Some(again) = self.root(job.view) else {
                return;
            };
            root = again;
        }
    }

    fn unmap_in(
        &self,
        job: &mut UnmapJob,
        node: Node,
        level: Level,
        base: Gfn,
    ) -> Result<(), Detached> {
        let covered = GfnRange::from_len(base, level.pages() << INDEX_BITS);
        let part = covered.intersect(job.range);
        if part.is_empty() {
            return Ok(());
        }
        let last = Gfn::new(part.end().index() - 1);
        for index in level.index_of(part.start())..=level.index_of(last) {
            let start = base.plus(index as u64 * level.pages());
            let span = GfnRange::from_len(start, level.pages());
            self.unmap_entry(job, node, index, level, span)?;
        }
        Ok(())
    }

    fn unmap_entry(
        &self,
        job: &mut UnmapJob,
        node: Node,
        index: usize,
        level: Level,
        span: GfnRange,
    ) -> Result<(), Detached> {
        let slot = node.slot(&self.memory, index);
        let whole = job.range.covers(span);
        loop {
            let entry = Entry(slot.load(Ordering::Acquire));
            if entry == Entry::ABSENT {
                return Ok(());
            }
            if entry.is_detached() {
                return Err(Detached(span.start()));
            }
            if entry.is_frozen() {
                cpu_relax();
            } else if entry.is_table(level) {
                let Some(below) = level.below() else {
                    return Ok(());
                };
                let Some(table) = node.below(&self.memory, index, entry) else {
                    continue;
                };
                if !whole {
                    return self.unmap_in(job, table, below, span.start());
                }
                if try_replace(slot, entry, Entry::ABSENT) {
                    job.flush.add(job.view.bit(), span);
                    self.detach_table(job, table, below, span.start());
                    return Ok(());
                }
            } else {
                let mut all = whole;
                if !whole {
                    let found = EntryRef::new(&self.memory, node, index, level, entry);
                    all = self.split_at(span.start(), &found).is_err();
                    if all && entry.is_mmio() {
                        return Ok(());
                    }
                }
                if all && self.remove_at(job, node, index, level, span, Entry::ABSENT) {
                    return Ok(());
                }
            }
        }
    }

    /// Detaches all entries of a detached root, and the tables below it.
    pub(crate) fn detach_tree(&self, flush: &mut TlbFlush, view: View, root: Node) {
        let mut job = UnmapJob {
            view,
            range: GfnRange::EMPTY,
            flush: core::mem::take(flush),
        };
        self.detach_table(&mut job, root, Level::Root, Gfn::new(0));
        *flush = job.flush;
    }

    fn detach_table(&self, job: &mut UnmapJob, node: Node, level: Level, base: Gfn) {
        for index in 0..ENTRIES {
            let slot = node.slot(&self.memory, index);
            let start = base.plus(index as u64 * level.pages());
            let span = GfnRange::from_len(start, level.pages());
            loop {
                let entry = Entry(slot.load(Ordering::Acquire));
                if entry.is_detached() {
                    break;
                }
                if entry.is_frozen() {
                    cpu_relax();
                } else if let Some(below) = level.below().filter(|_| entry.is_table(level)) {
                    let Some(table) = node.below(&self.memory, index, entry) else {
                        continue;
                    };
                    if try_replace(slot, entry, Entry::DETACHED) {
                        self.detach_table(job, table, below, start);
                        break;
                    }
                } else if self.remove_at(job, node, index, level, span, Entry::DETACHED) {
                    break;
                }
            }
        }
        self.retire(&mut job.flush, node);
    }

    /// Replaces an entry that is not a table by `with`. Returns false if the entry is a table by
    /// now, or was detached before its table.
    fn remove_at(
        &self,
        job: &mut UnmapJob,
        node: Node,
        index: usize,
        level: Level,
        span: GfnRange,
        with: Entry,
    ) -> bool {
        let slot = node.slot(&self.memory, index);
        loop {
            let entry = Entry(slot.load(Ordering::Acquire));
            if entry.is_leaf(level) {
                let gfn = mapped_gfn(node.gfn_word(&self.memory, index), span.start());
                if self.remove_leaf(node.location(index), level, gfn, with) {
                    job.flush.add(job.view.bit(), span);
                    return true;
                }
            } else if entry.is_table(level) {
                return false;
            } else if entry.is_frozen() {
                cpu_relax();
            } else if entry.is_detached() {
                return with.is_detached();
            } else if try_replace(slot, entry, with) {
                return true;
            }
        }
    }

    /// Replaces the leaf for `gfn` by `with` and removes it from the reverse map. Returns false if
    /// the entry, once it is not frozen, is not a leaf or maps another guest frame.
    fn remove_leaf(&self, location: Location, level: Level, gfn: Gfn, with: Entry) -> bool {
        let slot = location.slot(&self.memory);
        let nested = location.is_nested();
        loop {
            let entry = load_unfrozen(slot);
            if !entry.is_leaf(level) {
                return false;
            }
            if !nested {
                // Log first, then remove the entry: a take finds the page in one of the two.
                self.log_dirty_flag(entry, gfn);
            }
            if try_replace(slot, entry, Entry::FROZEN) {
                if nested && !self.rmap.contains(&self.memory, level, gfn, location) {
                    // The address was mapped again since the caller looked it up: this is a
                    // different leaf.
                    slot.store(entry.0, Ordering::Release);
                    return false;
                }
                self.rmap.remove(&self.memory, level, gfn, location);
                slot.store(with.0, Ordering::Release);
                return true;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::HostFrame;
    use crate::capabilities::Capabilities;
    use crate::map::Mapping;
    use crate::testing::TestMemory;

    /// A thread has read in the reverse map where frame 0 is mapped, and meanwhile the entry maps
    /// frame 1.
    #[test]
    fn a_nested_leaf_that_was_remapped_is_not_changed() {
        let guest = Guest::new(TestMemory::new(20), 512, 0, Capabilities::ALL).unwrap();
        let nested = guest.add_nested_view().unwrap();
        let (at, page) = (Gfn::new(7), GfnRange::from_len(Gfn::new(1), 1));
        let mapping = Mapping::ram(page, HostFrame::new(0x1000));
        guest.map_nested(nested, at, &mapping).unwrap();
        let leaf = guest.walk(nested, at, Level::Size4K).unwrap();
        let change = |leaf: Entry| Some(leaf.with_write(false));
        for (gfn, ours) in [(Gfn::new(0), false), (page.start(), true)] {
            assert_eq!(
                guest.change_leaf(Level::Size4K, gfn, leaf.location, change),
                ours
            );
            let removed = guest.remove_leaf(leaf.location, Level::Size4K, gfn, Entry::ABSENT);
            assert_eq!(removed, ours);
            let left = guest.lookup(nested, at).unwrap().gfn;
            assert_eq!(left.is_none(), ours);
        }
    }
}
