//! Walking the tables from a root to an entry, and changing that entry.

use crate::address::{Gfn, GfnRange, HostFrame, Level};
use crate::atomic::{AtomicU64, Ordering, cpu_relax};
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::{FrameAccess, HostMemory};
use crate::rmap::Location;
use crate::view::View;

/// A guest frame number that no guest has.
const INVALID_GFN: Gfn = Gfn::new(u64::MAX >> 12);

/// A table of a view. Each table of a nested view has a *GFN table* beside it (like KVM's shadowed
/// translations): for each leaf the guest frame that it maps (plus 1), for each reference to a
/// table the address of that table's GFN table.
///
/// A word of a GFN table is written only while its entry is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) table: HostFrame,
    pub(crate) gfn_table: Option<HostFrame>,
}

impl Node {
    #[inline]
    pub(crate) const fn location(self, index: usize) -> Location {
        Location::new(self.table, index, self.gfn_table.is_some())
    }

    #[inline]
    pub(crate) fn slot<M: FrameAccess + ?Sized>(self, memory: &M, index: usize) -> &AtomicU64 {
        &memory.table(self.table)[index]
    }

    #[inline]
    pub(crate) fn gfn_word<M: FrameAccess + ?Sized>(
        self,
        memory: &M,
        index: usize,
    ) -> Option<&AtomicU64> {
        Some(&memory.table(self.gfn_table?)[index])
    }

    /// Returns the table that `entry`, read at `index`, refers to; `None` if the entry has changed
    /// since.
    #[inline]
    pub(crate) fn below<M: FrameAccess + ?Sized>(
        self,
        memory: &M,
        index: usize,
        entry: Entry,
    ) -> Option<Self> {
        let table = entry.frame();
        let Some(gfn_word) = self.gfn_word(memory, index) else {
            let gfn_table = None;
            return Some(Self { table, gfn_table });
        };
        let gfn_table = Some(HostFrame::containing(gfn_word.load(Ordering::Acquire)));
        // The entry refers to the same table before and after the read, so the GFN table belongs to
        // it. No table is reused while a thread holds an RCU read guard.
        let now = Entry(self.slot(memory, index).load(Ordering::Acquire));
        let same = now.is_present() && now.frame() == table;
        same.then_some(Self { table, gfn_table })
    }
}

/// Reference to a table entry that a walk has reached.
#[derive(Debug)]
pub(crate) struct EntryRef<'g> {
    pub(crate) location: Location,
    pub(crate) slot: &'g AtomicU64,
    pub(crate) gfn_word: Option<&'g AtomicU64>,
    pub(crate) level: Level,
    pub(crate) entry: Entry,
}

impl<'g> EntryRef<'g> {
    #[inline]
    pub(crate) fn new<M: HostMemory>(
        memory: &'g M,
        node: Node,
        index: usize,
        level: Level,
        entry: Entry,
    ) -> Self {
        Self {
            location: node.location(index),
            slot: node.slot(memory, index),
            gfn_word: node.gfn_word(memory, index),
            level,
            entry,
        }
    }

    /// Replaces the entry if it still has the value that was read.
    pub(crate) fn try_replace(&self, new: Entry) -> bool {
        try_replace(self.slot, self.entry, new)
    }

    /// Returns the guest frame that the leaf maps at `at`. For a leaf of a nested view the value is
    /// reliable only while the entry is frozen: otherwise another thread may map it to another
    /// frame.
    pub(crate) fn gfn(&self, at: Gfn) -> Gfn {
        mapped_gfn(self.gfn_word, at)
    }

    /// Stores the guest frame that the leaf maps, in a nested view. The caller has frozen the
    /// entry.
    pub(crate) fn set_gfn(&self, gfn: Gfn) {
        if let Some(gfn_word) = self.gfn_word {
            gfn_word.store(gfn.index() + 1, Ordering::Release);
        }
    }

    /// Stores the address of a table's GFN table. The caller has frozen the entry, or the entry is
    /// absent in a view that is not nested.
    pub(crate) fn set_gfn_table(&self, table: Node) {
        if let (Some(gfn_word), Some(gfn_table)) = (self.gfn_word, table.gfn_table) {
            gfn_word.store(gfn_table.address(), Ordering::Release);
        }
    }
}

/// Returns the guest frame that a leaf at `at` maps, given its word of the GFN table.
pub(crate) fn mapped_gfn(gfn_word: Option<&AtomicU64>, at: Gfn) -> Gfn {
    match gfn_word.map(|word| word.load(Ordering::Acquire)) {
        None => at,
        Some(word) => word.checked_sub(1).map_or(INVALID_GFN, Gfn::new),
    }
}

/// Returns the entry once it is not frozen. A thread that has frozen an entry does not wait for
/// other threads.
pub(crate) fn load_unfrozen(slot: &AtomicU64) -> Entry {
    loop {
        let entry = Entry(slot.load(Ordering::Acquire));
        if !entry.is_frozen() {
            return entry;
        }
        cpu_relax();
    }
}

/// Changes an entry from `old` to `new`; fails if its value is not `old`.
pub(crate) fn try_replace(slot: &AtomicU64, old: Entry, new: Entry) -> bool {
    slot.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

impl<M: HostMemory> Guest<M> {
    /// Walks the tables of `view` towards `at`, to an entry that is not a table, or to level
    /// `floor`. The caller holds an RCU read guard. Returns `None` if the view does not exist or
    /// `at` is out of range.
    pub(crate) fn walk(&self, view: View, at: Gfn, floor: Level) -> Option<EntryRef<'_>> {
        if !at.is_translated() {
            return None;
        }
        'again: loop {
            let mut node = self.root(view)?;
            let mut level = Level::Root;
            loop {
                let index = level.index_of(at);
                let entry = Entry(node.slot(&self.memory, index).load(Ordering::Acquire));
                if entry.is_detached() {
                    cpu_relax();
                    continue 'again;
                }
                match level.below() {
                    Some(below) if level > floor && entry.is_table(level) => {
                        let Some(next) = node.below(&self.memory, index, entry) else {
                            continue 'again;
                        };
                        node = next;
                        level = below;
                    }
                    _ => return Some(EntryRef::new(&self.memory, node, index, level, entry)),
                }
            }
        }
    }

    /// Calls `visit` with the root and each part of `range` (addresses of `view`) that one 1 GiB
    /// entry covers, in ascending order. Skips holes of 512 GiB. Each part is a separate RCU
    /// read-side critical section. Returns false if the view does not exist.
    pub(crate) fn for_each_gib(
        &self,
        view: View,
        range: GfnRange,
        visit: &mut dyn FnMut(Node, GfnRange),
    ) -> bool {
        let mut at = range.start();
        while at < range.end() {
            let _guard = self.rcu.read();
            let Some(root) = self.root(view) else {
                return false;
            };
            let slot = root.slot(&self.memory, Level::Root.index_of(at));
            let entry = load_unfrozen(slot);
            let level = if entry == Entry::ABSENT {
                Level::Root
            } else {
                Level::Size1G
            };
            let next = at.align_down(level).plus(level.pages());
            if level == Level::Size1G {
                visit(root, GfnRange::new(at, next).intersect(range));
            }
            at = next;
        }
        true
    }

    /// Changes the leaf at `location`, which the reverse map returned for `gfn`, to the result of
    /// `change` (`None`: no change). Returns whether the leaf was changed.
    pub(crate) fn change_leaf(
        &self,
        level: Level,
        gfn: Gfn,
        location: Location,
        change: impl Fn(Entry) -> Option<Entry>,
    ) -> bool {
        let slot = location.slot(&self.memory);
        loop {
            let old = load_unfrozen(slot);
            if !old.is_leaf(level) {
                return false;
            }
            let Some(new) = change(old).filter(|new| *new != old) else {
                return false;
            };
            if !location.is_nested() {
                if try_replace(slot, old, new) {
                    return true;
                }
            } else if try_replace(slot, old, Entry::FROZEN) {
                // The entry may map another guest frame by now. While it is frozen, the reverse map
                // gives a reliable answer.
                let ours = self.rmap.contains(&self.memory, level, gfn, location);
                slot.store(if ours { new.0 } else { old.0 }, Ordering::Release);
                return ours;
            }
        }
    }
}
