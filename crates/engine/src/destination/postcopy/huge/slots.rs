//! Which thread writes which piece of which huge page, and which thread wrote the last piece.
//!
//! A lock is taken to find a huge page's slot, and to leave it. Pieces are claimed and counted
//! without the lock, and no lock is held while they are copied: each piece has exactly one writer,
//! and the thread that counts the last piece sees all writes (the counter's release and acquire).
//!
//! A slot is used for another huge page only when its huge page is done and every thread has left
//! it.

use hikkoshi_pages::{Page, PageBitmap, PageRange};

use crate::destination::install_error::TooManyPartial;
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Slots for huge pages of one size.
#[derive(Debug)]
pub(crate) struct SlotTable {
    /// 4 KiB pages in a huge page.
    pages: u64,
    entries: Mutex<Vec<Entry>>,
    slots: Box<[Slot]>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    /// Threads between [`SlotTable::enter`] and [`SlotTable::leave`].
    users: u32,
    /// No page of it is missing any more.
    done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Holds pieces of the huge page that begins there.
    Partial(Page),
    /// Is being cleared for the next one.
    Clearing,
}

#[derive(Debug)]
struct Slot {
    /// Pieces that are not claimed, by their offset in the huge page.
    missing: PageBitmap,
    /// Pieces that have not been written.
    left: AtomicU64,
}

impl SlotTable {
    /// `slots` slots for huge pages of `pages` pages each.
    pub(crate) fn new(pages: u64, slots: usize) -> Self {
        let free = Entry {
            state: State::Free,
            users: 0,
            done: false,
        };
        Self {
            pages,
            entries: Mutex::new(vec![free; slots]),
            slots: (0..slots)
                .map(|_| Slot {
                    missing: PageBitmap::full(pages),
                    left: AtomicU64::new(pages),
                })
                .collect(),
        }
    }

    /// The slot of the huge page that begins at `start`: its own, or a free one.
    pub(crate) fn enter(&self, start: Page) -> Result<usize, TooManyPartial> {
        let full = TooManyPartial(self.slots.len());
        let Ok(mut entries) = self.entries.lock() else {
            // A thread panicked while it held the lock, and reported it.
            return Err(full);
        };
        let holding = |state| entries.iter().position(|entry| entry.state == state);
        let slot = holding(State::Partial(start))
            .or_else(|| holding(State::Free))
            .ok_or(full)?;
        if let Some(entry) = entries.get_mut(slot) {
            entry.state = State::Partial(start);
            entry.users += 1;
        }
        Ok(slot)
    }

    /// Enters the huge page that begins at `start`, if it has a slot.
    pub(crate) fn enter_existing(&self, start: Page) -> Option<usize> {
        let mut entries = self.entries.lock().ok()?;
        let state = State::Partial(start);
        let slot = entries.iter().position(|entry| entry.state == state)?;
        entries.get_mut(slot)?.users += 1;
        Some(slot)
    }

    /// The first pages of all huge pages that have a slot.
    pub(crate) fn partial(&self) -> Vec<Page> {
        let Ok(entries) = self.entries.lock() else {
            return Vec::new();
        };
        let starts = entries.iter().filter_map(|entry| match entry.state {
            State::Partial(start) => Some(start),
            _ => None,
        });
        starts.collect()
    }

    /// Claims what is left of `piece` (offsets in the huge page) for writing, a run at a time;
    /// `None` when all of it is claimed.
    pub(crate) fn claim(&self, slot: usize, piece: PageRange) -> Option<PageRange> {
        self.slots.get(slot)?.missing.claim_run(piece, piece.len())
    }

    /// `pages` more claimed pages have been written; `true` for the thread that wrote the last.
    pub(crate) fn written(&self, slot: usize, pages: u64) -> bool {
        self.slots
            .get(slot)
            .is_some_and(|slot| slot.left.fetch_sub(pages, Ordering::AcqRel) == pages)
    }

    /// The pages that are not claimed, by their offset in the huge page.
    pub(crate) fn missing(&self, slot: usize) -> Option<&PageBitmap> {
        Some(&self.slots.get(slot)?.missing)
    }

    /// Leaves a slot. `done`: no page of its huge page is missing any more. The last thread to
    /// leave a slot that is done clears it for another huge page, and calls `clear`.
    pub(crate) fn leave(&self, slot: usize, done: bool, clear: impl FnOnce()) {
        {
            let Ok(mut entries) = self.entries.lock() else {
                return;
            };
            let Some(entry) = entries.get_mut(slot) else {
                return;
            };
            entry.users -= 1;
            entry.done |= done;
            if entry.users > 0 || !entry.done {
                return;
            }
            entry.state = State::Clearing;
        }
        // No thread finds it now; clearing the bits of a gigabyte takes time.
        clear();
        if let Some(slot) = self.slots.get(slot) {
            slot.missing.set_range(slot.missing.all());
            // Read by no thread, and written before the lock is taken.
            slot.left.fetch_add(
                self.pages - slot.left.load(Ordering::Relaxed),
                Ordering::Relaxed,
            );
        }
        if let Ok(mut entries) = self.entries.lock()
            && let Some(entry) = entries.get_mut(slot)
        {
            entry.state = State::Free;
            entry.done = false;
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const PAGES: u64 = 2;

    struct Shared {
        table: SlotTable,
        /// What was written where.
        content: [AtomicU64; PAGES as usize],
    }

    /// Writes page `at` of the huge page at `start`; returns the content if it was the last.
    fn bring(shared: &Shared, start: u64, at: u64) -> Option<[u64; 2]> {
        let start = Page::new(start);
        let slot = shared.table.enter(start).unwrap();
        let piece = PageRange::from_len(Page::new(at), 1);
        let mut won = 0;
        while let Some(run) = shared.table.claim(slot, piece) {
            let place = usize::try_from(run.start().index()).unwrap();
            shared.content[place].store(start.index() + at + 1, Ordering::Relaxed);
            won += run.len();
        }
        let last = won > 0 && shared.table.written(slot, won);
        let content =
            last.then(|| [0, 1].map(|place: usize| shared.content[place].load(Ordering::Relaxed)));
        shared.table.leave(slot, last, || {});
        content
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            table: SlotTable::new(PAGES, 1),
            content: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// Two threads write a piece each: one of them sees both.
    #[test]
    fn loom_the_last_piece_sees_the_others() {
        loom::model(|| {
            let shared = shared();
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || bring(&other, 10, 0));
            let mine = bring(&shared, 10, 1);
            let theirs = thread.join().unwrap();
            assert!(mine.is_some() != theirs.is_some(), "whole once");
            assert_eq!(mine.or(theirs), Some([11, 12]));
            // The slot is free for another one.
            assert_eq!(bring(&shared, 20, 1), None);
            assert_eq!(bring(&shared, 20, 0), Some([21, 22]));
        });
    }

    /// One piece arrives twice while the other one arrives.
    #[test]
    fn loom_a_piece_that_comes_twice_counts_once() {
        loom::model(|| {
            let shared = shared();
            assert_eq!(bring(&shared, 10, 0), None);
            let other = Arc::clone(&shared);
            // Stays in the slot while the huge page is completed.
            let slot = shared.table.enter(Page::new(10)).unwrap();
            let thread = thread::spawn(move || bring(&other, 10, 1));
            let again = PageRange::from_len(Page::new(0), 1);
            assert_eq!(shared.table.claim(slot, again), None);
            shared.table.leave(slot, false, || {});
            assert_eq!(thread.join().unwrap(), Some([11, 12]));
        });
    }
}
