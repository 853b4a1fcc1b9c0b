//! When the outstanding requests were made.
//!
//! A table of fixed size: requests that find no entry are counted and not measured. Nothing here
//! decides which pages are requested.
//!
//! Two threads use an entry, the one that requests a page and the one that installs it, and a page
//! may arrive without a request at any moment. The requesting thread records the times first and
//! then checks whether the page is still missing. The installing thread clears the page's bit first
//! and then looks for the times. With a fence between the two steps on each side at least one of
//! them sees the other, so that no entry is left behind.
//!
//! A request that is lost with its link keeps its entry: when its page is requested again, over the
//! next link, the times of the first request stay. So the latency of a page that the guest waited
//! for over an outage is that whole time.

use hikkoshi_pages::{Page, PageBitmap};

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Entries that a page may use.
const WAYS: usize = 8;

/// Sets of [`WAYS`] entries each: enough for some thousand requests, a few for each virtual
/// processor of a large machine.
#[cfg(not(loom))]
const SETS: usize = 512;
#[cfg(loom)]
const SETS: usize = 1;

/// No page.
const FREE: u64 = 0;
/// Being written.
const TAKEN: u64 = u64::MAX;

/// The times of outstanding requests.
#[derive(Debug)]
pub(crate) struct RequestTimes {
    entries: Box<[Entry]>,
    /// Requests that found no entry.
    unmeasured: AtomicU64,
    /// Requests were lost with their link: a page may have an entry, or two, when it is requested.
    repeats: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    /// The page's number plus one, [`FREE`] or [`TAKEN`].
    page: AtomicU64,
    fault_read: AtomicU64,
    request_sent: AtomicU64,
}

/// When a request was made, in nanoseconds of
/// [`OpenRequests::now`](crate::destination::postcopy::open_requests::OpenRequests::now).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestTime {
    pub(crate) fault_read: u64,
    pub(crate) request_sent: u64,
}

impl RequestTimes {
    pub(crate) fn new() -> Self {
        Self {
            entries: (0..SETS * WAYS)
                .map(|_| Entry {
                    page: AtomicU64::new(FREE),
                    fault_read: AtomicU64::new(0),
                    request_sent: AtomicU64::new(0),
                })
                .collect(),
            unmeasured: AtomicU64::new(0),
            repeats: AtomicBool::new(false),
        }
    }

    /// Requests that found no entry.
    pub(crate) fn unmeasured(&self) -> u64 {
        self.unmeasured.load(Ordering::Relaxed)
    }

    /// Records `page`, once for each page and link, before its request is sent; if a request for it
    /// was lost, its times stay. Returns whether the page is still missing according to `missing`;
    /// if not, nothing is recorded.
    pub(crate) fn note(&self, page: Page, made: RequestTime, missing: &PageBitmap) -> bool {
        if self.has_lost_requests() && self.has(page) {
            // The thread that installs it takes the entry, which was there before.
            return missing.get(page);
        }
        if !self.add(page, made) {
            self.unmeasured.fetch_add(1, Ordering::Relaxed);
            return missing.get(page);
        }
        fence(Ordering::SeqCst);
        if missing.get(page) {
            return true;
        }
        // The thread that installed it may have looked too early, or takes the entry now.
        self.take(page);
        false
    }

    /// Calls `each` with each recorded page.
    pub(crate) fn each(&self, each: &mut dyn FnMut(Page)) {
        for entry in &self.entries {
            let page = entry.page.load(Ordering::Relaxed);
            if page != FREE && page != TAKEN {
                each(Page::new(page - 1));
            }
        }
    }

    /// The requests were lost with their link. Their pages are requested again, or arrive without
    /// that, or are not missing any more, because the source does not owe them.
    pub(crate) fn lose(&self, missing: &PageBitmap) {
        self.repeats.store(true, Ordering::Relaxed);
        self.each(&mut |page| {
            if !missing.get(page) {
                self.take(page);
            }
        });
    }

    /// Whether a page may have times although it was not requested on the present link.
    pub(crate) fn has_lost_requests(&self) -> bool {
        self.repeats.load(Ordering::Relaxed)
    }

    /// Removes and returns the times of `page`, if they were recorded. The page's bit must have
    /// been cleared before.
    pub(crate) fn answered(&self, page: Page) -> Option<RequestTime> {
        fence(Ordering::SeqCst);
        self.take(page)
    }

    /// Whether `page` has an entry.
    fn has(&self, page: Page) -> bool {
        let key = page.index() + 1;
        let mut entries = self.set(page).iter();
        entries.any(|entry| entry.page.load(Ordering::Relaxed) == key)
    }

    /// Makes an entry for `page`. `false`: there is no room.
    fn add(&self, page: Page, made: RequestTime) -> bool {
        let mine = self.set(page).iter().find(|entry| {
            entry
                .page
                .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        let Some(entry) = mine else { return false };
        entry.fault_read.store(made.fault_read, Ordering::Relaxed);
        entry
            .request_sent
            .store(made.request_sent, Ordering::Relaxed);
        entry.page.store(page.index() + 1, Ordering::Release);
        true
    }

    fn take(&self, page: Page) -> Option<RequestTime> {
        let mut made = self.take_one(page)?;
        // Two threads may have requested it when the link was replaced.
        while self.has_lost_requests()
            && let Some(other) = self.take_one(page)
        {
            if other.fault_read < made.fault_read {
                made = other;
            }
        }
        Some(made)
    }

    fn take_one(&self, page: Page) -> Option<RequestTime> {
        let key = page.index() + 1;
        let entry = self
            .set(page)
            .iter()
            .find(|entry| entry.page.load(Ordering::Acquire) == key)?;
        let made = RequestTime {
            fault_read: entry.fault_read.load(Ordering::Relaxed),
            request_sent: entry.request_sent.load(Ordering::Relaxed),
        };
        // The times belong to the page if the entry is still there.
        entry
            .page
            .compare_exchange(key, FREE, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then_some(made)
    }

    fn set(&self, page: Page) -> &[Entry] {
        // Fibonacci hashing: spreads neighbours, and pages that are a huge page apart.
        let hash = page.index().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let set = usize::try_from(hash).unwrap_or(0) % SETS;
        self.entries
            .get(set * WAYS..(set + 1) * WAYS)
            .unwrap_or_default()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn made(at: u64) -> RequestTime {
        RequestTime {
            fault_read: at,
            request_sent: at + 1,
        }
    }

    #[test]
    fn times_are_given_back_once() {
        let table = RequestTimes::new();
        let missing = PageBitmap::full(10_000);
        for page in 0..2000 {
            assert!(table.note(Page::new(page), made(page), &missing));
        }
        let mut found = 0;
        for page in (0..2000).rev().map(Page::new) {
            assert!(missing.claim(page));
            if let Some(times) = table.answered(page) {
                assert_eq!(times, made(page.index()));
                found += 1;
            }
            assert_eq!(table.answered(page), None);
        }
        // What is not found was counted.
        assert_eq!(found + table.unmeasured(), 2000);
        assert!(found > 1900, "{found}");
        // Not missing any more: no entry is left behind.
        assert!(!table.note(Page::new(7), made(7), &missing));
        assert_eq!(table.answered(Page::new(7)), None);
        assert_eq!(table.answered(Page::new(9999)), None, "never asked for");
    }

    #[test]
    fn a_page_that_is_requested_again_keeps_its_first_times() {
        let table = RequestTimes::new();
        let missing = PageBitmap::full(10);
        let page = Page::new;
        assert!(table.note(page(1), made(100), &missing));
        assert!(table.note(page(2), made(200), &missing));
        assert!(table.note(page(3), made(300), &missing));
        assert!(missing.claim(page(3)), "not owed");
        table.lose(&missing);
        assert!(table.note(page(1), made(9000), &missing));
        let mut waiting = Vec::new();
        table.each(&mut |page| waiting.push(page.index()));
        waiting.sort_unstable();
        assert_eq!(waiting, [1, 2], "each once");
        // The other one arrives without a second request.
        for (number, at) in [(1, 100), (2, 200)] {
            assert!(missing.claim(page(number)));
            assert_eq!(table.answered(page(number)), Some(made(at)));
            assert_eq!(table.answered(page(number)), None);
        }
        assert!(!table.note(page(2), made(9999), &missing), "it is here");
        table.each(&mut |page| panic!("{page:?} was left behind"));
        assert_eq!(table.unmeasured(), 0);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let table = RequestTimes::new();
        let pages = 3 * (SETS * WAYS) as u64;
        let missing = PageBitmap::full(pages);
        for page in 0..pages {
            assert!(table.note(Page::new(page), made(page), &missing));
        }
        let room = (SETS * WAYS) as u64;
        assert!(table.unmeasured() >= pages - room);
        let found = (0..pages)
            .filter(|&page| table.answered(Page::new(page)).is_some())
            .count() as u64;
        assert_eq!(found + table.unmeasured(), pages);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A page arrives while it is requested: one side takes its times, and no entry is left behind.
    #[test]
    fn loom_a_page_that_comes_while_it_is_asked_for() {
        loom::model(|| {
            let shared = Arc::new((RequestTimes::new(), PageBitmap::full(1)));
            let page = Page::new(0);
            let made = RequestTime {
                fault_read: 3,
                request_sent: 4,
            };
            let asking = Arc::clone(&shared);
            let asker = thread::spawn(move || {
                let (table, missing) = &*asking;
                table.note(page, made, missing)
            });
            let (table, missing) = &*shared;
            assert!(missing.claim(page));
            let answered = table.answered(page);
            assert!(answered.is_none_or(|times| times == made));
            let goes_on = asker.join().unwrap();
            // Requested without being measured: only if neither side could know.
            assert!(!goes_on || answered.is_some());
            assert_eq!(table.answered(page), None, "left behind");
            assert_eq!(table.unmeasured(), 0);
        });
    }

    /// A page whose request was lost arrives while it is requested again: its first times are taken
    /// once, and no entry is left behind.
    #[test]
    fn loom_a_page_that_comes_while_it_is_requested_again() {
        loom::model(|| {
            let shared = Arc::new((RequestTimes::new(), PageBitmap::full(1)));
            let page = Page::new(0);
            let at = |time| RequestTime {
                fault_read: time,
                request_sent: time,
            };
            let (table, missing) = &*shared;
            assert!(table.note(page, at(3), missing));
            table.lose(missing);
            let asking = Arc::clone(&shared);
            let asker = thread::spawn(move || {
                let (table, missing) = &*asking;
                table.note(page, at(9), missing)
            });
            assert!(missing.claim(page));
            assert_eq!(table.answered(page), Some(at(3)));
            asker.join().unwrap();
            assert_eq!(table.answered(page), None, "left behind");
            assert_eq!(table.unmeasured(), 0);
        });
    }
}
