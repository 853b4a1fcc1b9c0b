//! Changing permissions, and looking up what is mapped.

use crate::address::{Frame, Gfn, GfnRange, Level};
use crate::atomic::{Ordering, relax};
use crate::entry::Entry;
use crate::flush::Flush;
use crate::guest::{Guest, View};
use crate::kinds::{MemoryType, PageType, Permissions};
use crate::memory::Memory;
use crate::split::SplitError;
use crate::walk::replace;

/// What is mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// What the page is.
    pub page_type: PageType,
    /// The guest frame, for memory.
    pub gfn: Option<Gfn>,
    /// The host frame of just this page, for memory.
    pub host: Option<Frame>,
    /// The size of the leaf; of the hole, where nothing is mapped.
    pub level: Level,
    /// What the mapping allows.
    pub permissions: Option<Permissions>,
    /// How the processor caches it.
    pub memory: Option<MemoryType>,
    /// The entry itself, with its flags and what the dirty log holds back.
    pub entry: Entry,
}

impl<M: Memory> Guest<M> {
    /// What is mapped at `at`; `None` if there is no such view.
    pub fn lookup(&self, view: View, at: Gfn) -> Option<Lookup> {
        loop {
            let _inside = self.walkers.enter();
            let position = self.walk(view, at, Level::Page)?;
            let entry = position.entry;
            if entry.is_busy() {
                relax();
                continue;
            }
            let offset = at.index() - at.align_down(position.level).index();
            let leaf = entry.is_leaf(position.level);
            let start = at.align_down(position.level);
            return Some(Lookup {
                page_type: entry.page_type(),
                gfn: leaf.then(|| self.gfn_at(view, position.location, start).plus(offset)),
                host: leaf.then(|| entry.frame().plus(offset)),
                level: position.level,
                permissions: entry.granted().filter(|_| leaf),
                memory: entry.memory_type().filter(|_| leaf),
                entry,
            });
        }
    }

    /// Changes the permissions of what is mapped at `range`; addresses where nothing is mapped stay so.
    /// A superpage that lies in the range in part is split. What the dirty log holds back stays held
    /// back.
    ///
    /// The obligation is for the part that was changed: with a [`SplitError`] the rest of the range is
    /// as it was.
    pub fn protect(
        &self,
        view: View,
        range: GfnRange,
        permissions: Permissions,
    ) -> (Flush, Result<(), SplitError>) {
        let mut flush = Flush::none();
        let mut at = range.start();
        while at < range.end() {
            let _inside = self.walkers.enter();
            let Some(position) = self.walk(view, at, Level::Page) else {
                return (flush, Err(SplitError::NoView(view)));
            };
            let start = at.align_down(position.level);
            let span = GfnRange::from_len(start, position.level.pages());
            let entry = position.entry;
            if entry.is_busy() {
                relax();
            } else if !entry.is_leaf(position.level) {
                at = span.end();
            } else if !range.covers(span) {
                if let Err(error) = self.split_at(view, start, &position) {
                    return (flush, Err(error));
                }
            } else if position.replace(Entry::BUSY) {
                let gfn = self.gfn_at(view, position.location, start);
                let pages = GfnRange::from_len(gfn, span.len());
                let new = self.permitted(view, entry, position.level, pages, permissions);
                position.slot.store(new.0, Ordering::Release);
                // Execution and reading too: any bit that has gone.
                if entry.0 & !new.0 & 7 != 0 || forgets(entry, new) {
                    flush.add(view.bit(), span);
                }
                at = span.end();
            }
        }
        (flush, Ok(()))
    }

    fn permitted(
        &self,
        view: View,
        old: Entry,
        level: Level,
        pages: GfnRange,
        permissions: Permissions,
    ) -> Entry {
        let new = old.with_permissions(permissions);
        if old.is_logged() && permissions.writes() {
            // Logged before and after: as writable, and as dirty, as it was.
            return new.with_log(true).with_write(old.writes());
        }
        if !self.is_nested(view) {
            self.save_flag(old, pages.start());
        }
        self.armed(new, level, pages, self.is_nested(view))
    }

    /// Looks which leaves of `range` (addresses of the view) have been used since the last time: calls
    /// `used` with the span of each whose accessed flag is set, and clears the flag. One entry a leaf,
    /// whatever its size; what is not mapped costs one entry a hole.
    ///
    /// The obligation may be put off: until it is met, a use through a remembered translation goes
    /// unnoticed, and nothing else.
    pub fn age(&self, view: View, range: GfnRange, used: &mut dyn FnMut(GfnRange)) -> Flush {
        let mut flush = Flush::none();
        if let Some(root) = self.root(view) {
            let _inside = self.walkers.enter();
            self.age_in(
                view,
                range,
                (root, Level::Root, Gfn::new(0)),
                used,
                &mut flush,
            );
        }
        flush
    }

    fn age_in(
        &self,
        view: View,
        range: GfnRange,
        (table, level, base): (Frame, Level, Gfn),
        used: &mut dyn FnMut(GfnRange),
        flush: &mut Flush,
    ) {
        let covered = GfnRange::from_len(base, level.pages() << crate::address::INDEX_BITS);
        let part = covered.intersect(range);
        if part.is_empty() {
            return;
        }
        let last = Gfn::new(part.end().index() - 1);
        for index in level.index_of(part.start())..=level.index_of(last) {
            let start = base.plus(index as u64 * level.pages());
            let slot = &self.memory.table(table)[index];
            let entry = Entry(slot.load(Ordering::Acquire));
            if let Some(below) = level.below().filter(|_| entry.is_table(level)) {
                self.age_in(view, range, (entry.frame(), below, start), used, flush);
            } else if entry.is_leaf(level) && entry.accessed() {
                // A change meanwhile is a use.
                let _ = replace(slot, entry, entry.with_accessed(false));
                let span = GfnRange::from_len(start, level.pages());
                flush.add(view.bit(), span);
                used(span);
            }
        }
    }
}

/// Whether processors may remember more than the new leaf allows.
fn forgets(old: Entry, new: Entry) -> bool {
    (old.writes() && !new.writes()) || (old.dirty() && !new.dirty())
}
