//! The way from a root to an entry, and changing it there.

use crate::address::{Gfn, Level};
use crate::atomic::{AtomicU64, Ordering, relax};
use crate::entry::Entry;
use crate::guest::{Guest, View};
use crate::memory::Memory;
use crate::rmap::Location;

/// An entry on the way to an address.
#[derive(Debug)]
pub(crate) struct Position<'g> {
    pub(crate) location: Location,
    pub(crate) slot: &'g AtomicU64,
    pub(crate) level: Level,
    pub(crate) entry: Entry,
}

impl Position<'_> {
    /// Replaces the entry that was read; fails if it has changed since.
    pub(crate) fn replace(&self, new: Entry) -> bool {
        replace(self.slot, self.entry, new)
    }
}

/// The entry, once nobody is replacing it. Whoever holds one busy waits for nobody.
pub(crate) fn settled(slot: &AtomicU64) -> Entry {
    loop {
        let entry = Entry(slot.load(Ordering::Acquire));
        if !entry.is_busy() {
            return entry;
        }
        relax();
    }
}

/// Changes an entry from `old` to `new`; fails if it is not `old` any more.
pub(crate) fn replace(slot: &AtomicU64, old: Entry, new: Entry) -> bool {
    slot.compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}

impl<M: Memory> Guest<M> {
    /// Follows the tables of `view` towards `at`, to an entry that is no table, or to level `floor`.
    /// The caller is inside. `None`: there is no such view.
    pub(crate) fn walk(&self, view: View, at: Gfn, floor: Level) -> Option<Position<'_>> {
        'again: loop {
            let mut table = self.root(view)?;
            let mut level = Level::Root;
            loop {
                let location = Location::new(table, level.index_of(at));
                let slot = location.slot(&self.memory);
                let entry = Entry(slot.load(Ordering::Acquire));
                if entry.is_dead() {
                    relax();
                    continue 'again;
                }
                match level.below() {
                    Some(below) if level > floor && entry.is_table(level) => {
                        table = entry.frame();
                        level = below;
                    }
                    _ => {
                        return Some(Position {
                            location,
                            slot,
                            level,
                            entry,
                        });
                    }
                }
            }
        }
    }
}
