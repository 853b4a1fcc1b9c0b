//! Changing permissions, and looking up what is mapped.

use crate::address::{Frame, Gfn, GfnRange, Level};
use crate::atomic::{Ordering, relax};
use crate::attributes::{MemoryType, PageType, Permissions};
use crate::entry::Entry;
use crate::guest::{Guest, View};
use crate::host_memory::Memory;
use crate::split::SplitError;
use crate::tlb_flush::Flush;
use crate::walk::Position;

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
    /// What is mapped at `at`; `None` if there is no such view, or `at` is not below
    /// [`MAX_PAGES`](crate::MAX_PAGES).
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
                gfn: leaf.then(|| position.gfn(start).plus(offset)),
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
    /// as it was; all of it, if it ends beyond [`MAX_PAGES`](crate::MAX_PAGES).
    pub fn protect(
        &self,
        view: View,
        range: GfnRange,
        permissions: Permissions,
    ) -> (Flush, Result<(), SplitError>) {
        let mut flush = self.no_flush();
        if !GfnRange::TRANSLATED.covers(range) {
            return (flush, Err(SplitError::OutOfRange(range.end())));
        }
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
                if let Err(error) = self.split_at(start, &position) {
                    return (flush, Err(error));
                }
            } else if position.replace(Entry::BUSY) {
                let pages = GfnRange::from_len(position.gfn(start), span.len());
                let new = self.permitted(&position, pages, permissions);
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
        position: &Position<'_>,
        pages: GfnRange,
        permissions: Permissions,
    ) -> Entry {
        let (old, nested) = (position.entry, position.location.is_nested());
        let new = old.with_permissions(permissions);
        if old.is_logged() && permissions.writes() {
            // Logged before and after: as writable, and as dirty, as it was.
            return new.with_log(true).with_write(old.writes());
        }
        if !nested {
            self.save_flag(old, pages.start());
        }
        self.armed(new, position.level, pages, nested)
    }
}

/// Whether processors may remember more than the new leaf allows.
fn forgets(old: Entry, new: Entry) -> bool {
    (old.writes() && !new.writes()) || (old.dirty() && !new.dirty())
}
