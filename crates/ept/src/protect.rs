//! Changing permissions, and looking up what is mapped.

use crate::address::{Frame, Gfn, GfnRange, Level};
use crate::atomic::{Ordering, cpu_relax};
use crate::attributes::{MemoryType, PageType, Permissions};
use crate::entry::Entry;
use crate::guest::{Guest, View};
use crate::host_memory::HostMemory;
use crate::split::SplitError;
use crate::tlb_flush::TlbFlush;
use crate::walk::EntryRef;

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
    pub memory_type: Option<MemoryType>,
    /// The entry itself, with its flags and what the dirty log holds back.
    pub entry: Entry,
}

impl<M: HostMemory> Guest<M> {
    /// What is mapped at `at`; `None` if there is no such view, or `at` is not below
    /// [`MAX_PAGES`](crate::MAX_PAGES).
    pub fn lookup(&self, view: View, at: Gfn) -> Option<Lookup> {
        loop {
            let _guard = self.rcu.read();
            let found = self.walk(view, at, Level::Size4K)?;
            let entry = found.entry;
            if entry.is_frozen() {
                cpu_relax();
                continue;
            }
            let offset = at.index() - at.align_down(found.level).index();
            let leaf = entry.is_leaf(found.level);
            let start = at.align_down(found.level);
            return Some(Lookup {
                page_type: entry.page_type(),
                gfn: leaf.then(|| found.gfn(start).plus(offset)),
                host: leaf.then(|| entry.frame().plus(offset)),
                level: found.level,
                permissions: entry.granted().filter(|_| leaf),
                memory_type: entry.memory_type().filter(|_| leaf),
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
    ) -> (TlbFlush, Result<(), SplitError>) {
        let mut flush = self.empty_flush();
        if !GfnRange::TRANSLATED.covers(range) {
            return (flush, Err(SplitError::OutOfRange(range.end())));
        }
        let mut at = range.start();
        while at < range.end() {
            let _guard = self.rcu.read();
            let Some(found) = self.walk(view, at, Level::Size4K) else {
                return (flush, Err(SplitError::NoView(view)));
            };
            let start = at.align_down(found.level);
            let span = GfnRange::from_len(start, found.level.pages());
            let entry = found.entry;
            if entry.is_frozen() {
                cpu_relax();
            } else if !entry.is_leaf(found.level) {
                at = span.end();
            } else if !range.covers(span) {
                if let Err(error) = self.split_at(start, &found) {
                    return (flush, Err(error));
                }
            } else if found.try_replace(Entry::FROZEN) {
                let pages = GfnRange::from_len(found.gfn(start), span.len());
                let new = self.permitted(&found, pages, permissions);
                found.slot.store(new.0, Ordering::Release);
                // Execution and reading too: any bit that has gone.
                if entry.0 & !new.0 & 7 != 0 || forgets(entry, new) {
                    flush.add(view.bit(), span);
                }
                at = span.end();
            }
        }
        (flush, Ok(()))
    }

    fn permitted(&self, found: &EntryRef<'_>, pages: GfnRange, permissions: Permissions) -> Entry {
        let (old, nested) = (found.entry, found.location.is_nested());
        let new = old.with_permissions(permissions);
        if old.is_logged() && permissions.is_writable() {
            // Logged before and after: as writable, and as dirty, as it was.
            return new.with_log(true).with_write(old.is_writable());
        }
        if !nested {
            self.log_dirty_flag(old, pages.start());
        }
        self.arm_leaf(new, found.level, pages, nested)
    }
}

/// Whether processors may remember more than the new leaf allows.
fn forgets(old: Entry, new: Entry) -> bool {
    (old.is_writable() && !new.is_writable()) || (old.dirty() && !new.dirty())
}
