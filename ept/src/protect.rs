//! Changing the permissions of mappings.

use crate::address::{GfnRange, Level};
use crate::atomic::{Ordering, cpu_relax};
use crate::attributes::Permissions;
use crate::entry::Entry;
use crate::guest::Guest;
use crate::host_memory::HostMemory;
use crate::split::SplitError;
use crate::tlb_flush::TlbFlush;
use crate::view::View;
use crate::walk::EntryRef;

impl<M: HostMemory> Guest<M> {
    /// Changes the permissions of the mappings in `range`. Unmapped addresses stay unmapped. A
    /// superpage that is partly in the range is split. Write permission that the dirty log has
    /// removed stays removed.
    ///
    /// The returned flush covers the part that was changed. On a [`SplitError`] the rest of the
    /// range is unchanged; if the range ends after [`MAX_PAGES`](crate::MAX_PAGES), all of it is.
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
                // Flush if any permission was removed, including read and execute.
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
            // Logged before and after: writable and dirty as before.
            return new.with_log(true).with_write(old.is_writable());
        }
        if !nested {
            self.log_dirty_flag(old, pages.start());
        }
        self.arm_leaf(new, found.level, pages, nested)
    }
}

/// Whether processors may have cached more than the new leaf permits.
fn forgets(old: Entry, new: Entry) -> bool {
    (old.is_writable() && !new.is_writable()) || (old.dirty() && !new.dirty())
}
