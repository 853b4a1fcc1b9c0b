//! Ageing: which pages have been used since the last look.

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
    /// The processor keeps no accessed flags.
    #[error(
        "ageing: the processor has no accessed flags; unmap the pages and see which are faulted in"
    )]
    Unsupported,
    /// There is no such view.
    #[error("ageing in view {}: there is no such view", .0.number())]
    NoView(View),
}

impl<M: HostMemory> Guest<M> {
    /// Looks which leaves of `range` (addresses of the view) have been used since the last time: calls
    /// `used` with the span of each whose accessed flag is set, and clears the flag. One entry a leaf,
    /// whatever its size; what is not mapped costs one entry a hole.
    ///
    /// `used` takes notes; it must not discharge an obligation, or start or stop a log. The obligation that
    /// is returned may be put off: until it is met, a use through a remembered translation goes
    /// unnoticed, and nothing else.
    ///
    /// # Errors
    ///
    /// See [`AgeError`]. Without accessed flags, a hypervisor can take pages away
    /// ([`Guest::unmap`]), keep where they were, and see in
    /// [`ViolationOutcome::Absent`](crate::ViolationOutcome::Absent) which are wanted back.
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
                // If the table goes meanwhile, so do its pages.
                if let Some(table) = node.below(&self.memory, index, entry) {
                    self.age_in(view, range, (table, below), start, used, flush);
                }
            } else if entry.is_leaf(level) && entry.accessed() {
                // A change meanwhile is a use.
                let _ = try_replace(slot, entry, entry.with_accessed(false));
                let span = GfnRange::from_len(start, level.pages());
                flush.add(view.bit(), span);
                used(span);
            }
        }
    }

    /// The same for the guest frames of `range`, in all views, nested ones too: calls `used` with the
    /// guest frames of each leaf whose accessed flag is set, and clears the flag. Larger leaves come first
    /// in each part of the range; frames that several leaves map may be named several times.
    ///
    /// `used` as for [`Guest::age`]. Each size of leaf is looked for once: one word of the reverse map, and one entry, a leaf.
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
                                // Where the view has it is not known by guest frame.
                                in_nested = true;
                            } else {
                                flush.add(View::MAIN.bit(), span);
                            }
                        }
                    });
            }
        }
        // Only now: views may have been added meanwhile.
        flush.extend_to_views(self.plain_views());
        if in_nested {
            flush.add_whole_views(self.nested_views());
        }
        Ok(flush)
    }
}
