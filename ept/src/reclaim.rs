//! Doing TLB flushes, and freeing detached tables afterwards.

use crate::address::{ENTRIES, HostFrame};
use crate::atomic::Ordering;
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::processors::Processors;
use crate::tlb_flush::{TableList, TlbFlush};
use crate::walk::{Node, load_unfrozen, try_replace};

impl<M: HostMemory> Guest<M> {
    /// Adds the flush `other` to `into`, so that processors are interrupted only once.
    ///
    /// # Panics
    ///
    /// Panics if one of the two belongs to another guest.
    pub fn batch(&self, into: &mut TlbFlush, other: TlbFlush) {
        into.assert_guest(self.id());
        other.assert_guest(self.id());
        if other.is_empty() {
            return;
        }
        into.absorb(&other);
        if let Some(chain) = other.tables {
            self.append_tables(into, chain);
        }
    }

    /// Does a flush: invalidates the translations on all processors, waits until no thread accesses
    /// the detached tables, and frees their frames.
    ///
    /// Waits for operations of other threads on this guest. Do not call it from within an operation
    /// (for example from a callback).
    ///
    /// # Panics
    ///
    /// Panics if the flush belongs to another guest: its processors would still use the tables that
    /// this call frees.
    pub fn flush(&self, flush: TlbFlush, processors: &(impl Processors + ?Sized)) {
        flush.assert_guest(self.id());
        if flush.is_empty() {
            return;
        }
        processors.invalidate(&flush);
        self.free_views(flush.removed());
        self.reclaim(flush.tables);
    }

    /// Frees the detached tables of a flush, abandoned tables and retired cells, after an RCU
    /// synchronization.
    pub(crate) fn reclaim(&self, tables: Option<TableList>) {
        let cells = self.rmap.take_retired();
        let abandoned = match self.abandoned.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.abandoned.swap(0, Ordering::AcqRel),
        };
        if tables.is_none() && cells.is_empty() && abandoned == 0 {
            return;
        }
        self.rcu.synchronize();
        self.free_detached(tables.map(|chain| chain.first));
        self.free_abandoned(abandoned);
        self.rmap.free_cells(&self.memory, cells);
    }

    /// Frees a list of detached tables. The first word of each links to the next table, the second
    /// to its GFN table.
    fn free_detached(&self, mut next: Option<HostFrame>) {
        while let Some(table) = next {
            let words = self.memory.table(table);
            next = Entry(words[0].load(Ordering::Acquire)).next_detached();
            let gfn_table = Entry(words[1].load(Ordering::Acquire)).next_detached();
            self.free_node(Node { table, gfn_table });
        }
    }

    pub(crate) fn free_abandoned(&self, top: u64) {
        self.free_detached((top != 0).then(|| HostFrame::containing(top)));
    }

    /// Writes the links into a table whose entries are all detached.
    fn link_detached(&self, node: Node, next: Option<HostFrame>) {
        let words = self.memory.table(node.table);
        words[0].store(Entry::detached_link(next).0, Ordering::Release);
        words[1].store(Entry::detached_link(node.gfn_table).0, Ordering::Release);
    }

    /// Adds a detached table, whose entries are all detached, to the tables that a flush frees.
    pub(crate) fn retire(&self, flush: &mut TlbFlush, node: Node) {
        self.link_detached(node, None);
        let alone = TableList {
            first: node.table,
            last: node.table,
        };
        self.append_tables(flush, alone);
    }

    /// Abandons a table that threads may have seen but no processor has. The next flush frees it.
    pub(crate) fn abandon(&self, node: Node) {
        for index in 0..ENTRIES {
            let slot = node.slot(&self.memory, index);
            while !try_replace(slot, load_unfrozen(slot), Entry::DETACHED) {}
        }
        let mut top = self.abandoned.load(Ordering::Relaxed);
        loop {
            self.link_detached(node, (top != 0).then(|| HostFrame::containing(top)));
            match self.abandoned.compare_exchange(
                top,
                node.table.address(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(other) => top = other,
            }
        }
    }

    fn append_tables(&self, flush: &mut TlbFlush, mut chain: TableList) {
        if let Some(old) = flush.tables {
            // The entry stays detached for threads that still walk here; the processor ignores it.
            let link = Entry::detached_link(Some(old.first));
            self.memory.table(chain.last)[0].store(link.0, Ordering::Release);
            chain.last = old.last;
        }
        flush.tables = Some(chain);
    }
}
