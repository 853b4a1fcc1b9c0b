//! Meeting obligations: having processors forget, and freeing what was taken out.

use crate::address::Frame;
use crate::atomic::Ordering;
use crate::entry::Entry;
use crate::flush::{Chain, Flush};
use crate::guest::Guest;
use crate::memory::Memory;
use crate::processors::Processors;

impl<M: Memory> Guest<M> {
    /// Joins obligations, so that processors are disturbed once.
    pub fn batch(&self, into: &mut Flush, other: Flush) {
        into.absorb(&other);
        if let Some(chain) = other.tables {
            self.chain(into, chain);
        }
    }

    /// Meets an obligation: has the processors forget, waits for everybody who may still be looking at
    /// tables taken out, and gives their frames back.
    ///
    /// Waits for other threads' operations on this guest; must not be called from within one.
    pub fn discharge(&self, flush: Flush, processors: &(impl Processors + ?Sized)) {
        if flush.is_empty() {
            return;
        }
        processors.invalidate(&flush);
        let Some(chain) = flush.tables else { return };
        self.walkers.wait();
        let mut next = Some(chain.first);
        while let Some(table) = next {
            next = Entry(self.memory.table(table)[0].load(Ordering::Acquire)).next_dead();
            self.free_table(table);
        }
    }

    /// Adds a table that was taken out, and whose entries are all dead, to those to be freed.
    pub(crate) fn retire(&self, flush: &mut Flush, table: Frame) {
        let alone = Chain {
            first: table,
            last: table,
        };
        self.memory.table(table)[0].store(Entry::dead_link(None).0, Ordering::Release);
        self.chain(flush, alone);
    }

    fn chain(&self, flush: &mut Flush, mut chain: Chain) {
        if let Some(old) = flush.tables {
            // A dead entry stays dead for whoever still walks here; the processor ignores it.
            let link = Entry::dead_link(Some(old.first));
            self.memory.table(chain.last)[0].store(link.0, Ordering::Release);
            chain.last = old.last;
        }
        flush.tables = Some(chain);
    }
}
