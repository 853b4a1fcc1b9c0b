//! Ageing: finds the leaves that were used since the previous scan, by their accessed flags.

use thiserror::Error;

use crate::address::{Gfn, GfnRange, INDEX_BITS, Level};
use crate::atomic::Ordering;
use crate::dirty_log::CHUNK_PAGES;
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::{Node, try_replace};

/// Why pages were not aged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AgeError {
    /// The processor does not keep accessed flags.
    #[error(
        "cannot age pages: the processor has no accessed flags; unmap the pages instead and see which ones fault"
    )]
    Unsupported,
    /// The view does not exist.
    #[error("cannot age pages: view {} does not exist", .0.number())]
    NoView(View),
}

impl<M: HostMemory> Guest<M> {
    /// Ages the leaves of `range` (addresses of the view): clears each accessed flag that is set
    /// and calls `used` with the span of that leaf. Reads one entry for each leaf, whatever its
    /// size, and one entry for each unmapped hole.
    ///
    /// `used` must only record the span. It must not flush TLBs, and must not start or stop a log.
    /// The returned flush may be delayed: until it is done, accesses through cached translations do
    /// not set the flag again, and nothing else goes wrong.
    ///
    /// # Errors
    ///
    /// See [`AgeError`]. On a processor without accessed flags, a hypervisor can unmap the pages
    /// ([`Guest::unmap`]), remember where they were, and see by
    /// [`ViolationOutcome::Absent`](crate::ViolationOutcome::Absent) which ones the guest accesses.
    pub fn age(
        &self,
        view: View,
        range: GfnRange,
        used: &mut dyn FnMut(GfnRange),
    ) -> Result<TlbFlush, AgeError> {
        if !self.capabilities.accessed_dirty {
            return Err(AgeError::Unsupported);
        }
        let mut flush = self.empty_flush();
        let there = self.for_each_gib(
            view,
            range.intersect(GfnRange::TRANSLATED),
            &mut |root, part| {
                let top = (root, Level::Root);
                self.age_in(view, part, top, Gfn::new(0), used, &mut flush);
            },
        );
        if !there {
            return Err(AgeError::NoView(view));
        }
        Ok(flush)
    }

    fn age_in(
        &self,
        view: View,
        range: GfnRange,
        (node, level): (Node, Level),
        base: Gfn,
        used: &mut dyn FnMut(GfnRange),
        flush: &mut TlbFlush,
    ) {
        let covered = GfnRange::from_len(base, level.pages() << INDEX_BITS);
        let part = covered.intersect(range);
        if part.is_empty() {
            return;
        }
        let last = Gfn::new(part.end().index() - 1);
        for index in level.index_of(part.start())..=level.index_of(last) {
            let start = base.plus(index as u64 * level.pages());
            let slot = node.slot(&self.memory, index);
            let entry = Entry(slot.load(Ordering::Acquire));
            if let Some(below) = level.below().filter(|_| entry.is_table(level)) {
                // If the table is detached meanwhile, its pages are unmapped anyway.
                if let Some(table) = node.below(&self.memory, index, entry) {
                    self.age_in(view, range, (table, below), start, used, flush);
                }
            } else if entry.is_leaf(level) && entry.accessed() {
                // If this fails, the entry has just changed: the leaf is in use.
                let _ = try_replace(slot, entry, entry.with_accessed(false));
                let span = GfnRange::from_len(start, level.pages());
                flush.add(view.bit(), span);
                used(span);
            }
        }
    }

    /// Ages the leaves that map guest frames of `range`, in all views including nested ones: clears
    /// each accessed flag that is set and calls `used` with the guest frames of that leaf. Within
    /// each part of the range, larger leaves come first. Frames that several leaves map may be
    /// reported several times.
    ///
    /// The rules for `used` are those of [`Guest::age`]. For each leaf size, the scan reads one
    /// word of the reverse map and one entry for each leaf.
    ///
    /// # Errors
    ///
    /// [`AgeError::Unsupported`].
    pub fn age_all_views(
        &self,
        range: GfnRange,
        used: &mut dyn FnMut(GfnRange),
    ) -> Result<TlbFlush, AgeError> {
        if !self.capabilities.accessed_dirty {
            return Err(AgeError::Unsupported);
        }
        let mut flush = self.empty_flush();
        let mut in_nested = false;
        for part in range.intersect(self.all()).chunks(CHUNK_PAGES) {
            let _guard = self.rcu.read();
            for level in Level::LEAVES {
                self.rmap
                    .for_each_in(&self.memory, level, part, &mut |gfn, location| {
                        let young =
                            |leaf: Entry| leaf.accessed().then(|| leaf.with_accessed(false));
                        if self.change_leaf(level, gfn, location, young) {
                            let span = GfnRange::from_len(gfn, level.pages());
                            used(span);
                            if location.is_nested() {
                                // The reverse map does not say at which address of the view the
                                // leaf is.
                                in_nested = true;
                            } else {
                                flush.add(View::MAIN.bit(), span);
                            }
                        }
                    });
            }
        }
        // Read the set of views last: views may have been added meanwhile.
        flush.extend_to_views(self.plain_views());
        if in_nested {
            flush.add_whole_views(self.nested_views());
        }
        Ok(flush)
    }
}
