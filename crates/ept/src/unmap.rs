//! Taking mappings away: each level is walked once, and a table that the range covers goes as a whole.

use crate::address::{ENTRIES, Gfn, GfnRange, INDEX_BITS, Level};
use crate::atomic::{Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::rmap::Location;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::{EntryRef, Node, load_unfrozen, mapped_gfn, try_replace};

/// An unmapping under way.
struct UnmapJob {
    view: View,
    range: GfnRange,
    flush: TlbFlush,
}

/// An entry that was found dead, by its first address.
struct Detached(Gfn);

impl<M: HostMemory> Guest<M> {
    /// Takes away what is mapped at `range` (addresses of the view): memory and device marks. A
    /// superpage that lies in the range in part is split.
    ///
    /// A superpage costs one entry, not one a page; a table that lies in the range as a whole is taken
    /// out with one exchange, and its entries then cost two words each. If no memory is left to split a
    /// superpage at the range's edge, all of it is taken away: the guest faults there once more, and
    /// nothing is lost. A device mark of that size stays as a whole then: the hypervisor has it from nowhere
    /// else.
    pub fn unmap(&self, view: View, range: GfnRange) -> TlbFlush {
        let range = range.intersect(GfnRange::TRANSLATED);
        let mut job = UnmapJob {
            view,
            range,
            flush: self.empty_flush(),
        };
        // Whoever waits for others to leave waits for one GiB, not for a guest.
        self.for_each_gib(view, range, &mut |root, part| {
            self.unmap_part(&mut job, root, part);
        });
        if range.len() >= Level::Root.pages() {
            // Tables of 512 GiB, empty by now, that lie in the range as a whole.
            let _guard = self.rcu.read();
            if let Some(root) = self.root(view) {
                self.unmap_part(&mut job, root, range);
            }
        }
        job.flush
    }

    /// Takes away what maps the guest frames of `range`, in all views: for a host that wants the memory
    /// back. A superpage of a nested view goes as a whole, wherever the range ends.
    ///
    /// What others map meanwhile may be there afterwards.
    pub fn unmap_all_views(&self, range: GfnRange) -> TlbFlush {
        let mut flush = self.empty_flush();
        self.for_each_plain_view(|view| self.batch(&mut flush, self.unmap(view, range)));
        let before = self.nested_views();
        if before != 0 {
            for part in range.intersect(self.all()).chunks(Level::Size1G.pages()) {
                let _guard = self.rcu.read();
                self.remove_nested(part);
            }
            // One may have come meanwhile.
            flush.add_whole_views(before | self.nested_views());
        }
        flush
    }

    /// Takes away what nested views map of the guest frames of `range`. The caller is inside.
    fn remove_nested(&self, range: GfnRange) {
        // Downwards: a leaf that is split meanwhile is found as its pieces. One that is put together with
        // others goes the other way, and may be passed on it; and while it is under way there is no leaf.
        self.merge_seq.retry_if_merged(|| {
            for level in Level::LEAVES {
                self.rmap
                    .for_each_in(&self.memory, level, range, &mut |gfn, location| {
                        if location.is_nested() {
                            // If it is not there any more, another thread has taken it away.
                            self.remove_leaf(location, level, gfn, Entry::ABSENT);
                        }
                    });
            }
        });
    }

    /// Takes away what is mapped at `part`.
    ///
    /// A dead entry does not mean that nothing is mapped: the leaf is being put together with others, or
    /// its table was taken out and another is there by now. From such an entry on it begins again at the
    /// root, on the way to which whoever is at work holds an entry busy, or has left it changed.
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

    /// Kills all entries of a root that was taken out, and the tables below.
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

    /// Replaces what is no table by `with`; false if it is one by now, or dead before its table is.
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

    /// Replaces the leaf for `gfn` by `with`, and takes it out of the reverse map; false if it is no
    /// leaf, or another one, once nobody is replacing it.
    fn remove_leaf(&self, location: Location, level: Level, gfn: Gfn, with: Entry) -> bool {
        let slot = location.slot(&self.memory);
        let nested = location.is_nested();
        loop {
            let entry = load_unfrozen(slot);
            if !entry.is_leaf(level) {
                return false;
            }
            if !nested {
                // Into the log first, then out of the entry: a taker finds one of the two.
                self.log_dirty_flag(entry, gfn);
            }
            if try_replace(slot, entry, Entry::FROZEN) {
                if nested && !self.rmap.contains(&self.memory, level, gfn, location) {
                    // Mapped anew since the caller looked: not the leaf that was meant.
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
    use crate::address::Frame;
    use crate::capabilities::Capabilities;
    use crate::map::Mapping;
    use crate::testing::TestMemory;

    /// Somebody read in the reverse map where frame 0 is mapped, and the entry maps frame 1 by now.
    #[test]
    fn a_nested_leaf_that_maps_another_frame_by_now_is_left_alone() {
        let guest = Guest::new(TestMemory::new(20), 512, 0, Capabilities::ALL).unwrap();
        let nested = guest.add_nested_view().unwrap();
        let (at, page) = (Gfn::new(7), GfnRange::from_len(Gfn::new(1), 1));
        let mapping = Mapping::ram(page, Frame::new(0x1000));
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
