//! What processors must forget before a change to the tables holds.

use core::fmt;

use crate::address::{Frame, Gfn, GfnRange};
use crate::view::View;

/// Ranges kept apart in one [`TlbFlush`]; the nearest two are joined when there are more.
const RANGES: usize = 8;

/// An obligation: processors may still use translations that the tables no longer hold.
///
/// Hand it to [`Guest::flush`](crate::Guest::flush), at once or after batching several with
/// [`Guest::batch`](crate::Guest::batch). Until then a guest can go on reading and writing through the
/// old translations, and tables that were taken out, and the numbers of removed views, stay taken: dropping an
/// obligation leaks them, which is safe; freeing them early would not be (SDM vol. 3C, "Caching Translation Information":
/// processors cache references to tables as well as leaves).
///
/// An obligation that is not even named does not compile where warnings are errors:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use hikkoshi_ept::{testing::TestMemory, *};
///
/// let guest = Guest::new(TestMemory::new(10), 512, 0, Capabilities::ALL).unwrap();
/// guest.unmap(View::MAIN, guest.all());
/// ```
///
/// ```
/// # #![deny(unused_must_use)]
/// # use hikkoshi_ept::{testing::TestMemory, *};
/// # let guest = Guest::new(TestMemory::new(10), 512, 0, Capabilities::ALL).unwrap();
/// # let processors = ();
/// let flush = guest.unmap(View::MAIN, guest.all());
/// guest.flush(flush, &processors);
/// ```
#[must_use = "processors keep using the old translations until this is handed to Guest::flush"]
#[derive(Default)]
pub struct TlbFlush {
    views: u64,
    /// [`Guest::id`](crate::Guest) of the guest that it is for; zero of one that came from
    /// [`TlbFlush::none`].
    guest: usize,
    /// Views whose numbers are given back when this is met.
    removed: u64,
    whole: bool,
    count: usize,
    ranges: [GfnRange; RANGES],
    pub(crate) tables: Option<TableList>,
}

/// Tables taken out, linked through their first words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableList {
    pub(crate) first: Frame,
    pub(crate) last: Frame,
}

impl TlbFlush {
    /// Nothing to forget.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.views == 0 && self.tables.is_none()
    }

    /// Whether translations of `view` are to be forgotten.
    pub fn applies_to(&self, view: View) -> bool {
        self.views & view.bit() != 0
    }

    /// The addresses to forget, as guest frames of each view concerned: translations of any size that
    /// cover one of them. `None`: all of them. (Intel's `INVEPT` knows no addresses: it forgets all of
    /// a view, or of all views.)
    pub fn ranges(&self) -> Option<&[GfnRange]> {
        if self.whole {
            None
        } else {
            Some(&self.ranges[..self.count])
        }
    }

    /// Whether a translation of `at` in `view` is to be forgotten.
    pub fn covers(&self, view: View, at: Gfn) -> bool {
        self.applies_to(view)
            && self
                .ranges()
                .is_none_or(|ranges| ranges.iter().any(|range| range.contains(at)))
    }

    /// The same for a guest.
    pub(crate) fn for_guest(guest: usize) -> Self {
        Self {
            guest,
            ..Self::default()
        }
    }

    /// Panics if another guest owes it.
    pub(crate) fn assert_guest(&self, guest: usize) {
        assert!(
            self.guest == guest || self.is_empty(),
            "an obligation was handed to a guest that is not its own"
        );
    }

    pub(crate) fn views(&self) -> u64 {
        self.views
    }

    pub(crate) fn removed(&self) -> u64 {
        self.removed
    }

    /// These views were removed.
    pub(crate) fn add_removed_views(&mut self, views: u64) {
        self.removed |= views;
        self.add_whole_views(views);
    }

    pub(crate) fn add(&mut self, views: u64, range: GfnRange) {
        if range.is_empty() || views == 0 {
            return;
        }
        self.views |= views;
        self.add_range(range);
    }

    /// The same for many ranges in ascending order: the first few are kept apart, the last one covers the
    /// rest. A take of a thousand pages has better things to do than to look for the nearest ranges.
    pub(crate) fn add_ascending(&mut self, views: u64, range: GfnRange) {
        if self.count < RANGES {
            self.add(views, range);
        } else if !range.is_empty() {
            self.views |= views;
            let last = &mut self.ranges[RANGES - 1];
            *last = last.hull(range);
        }
    }

    pub(crate) fn add_whole_views(&mut self, views: u64) {
        if views != 0 {
            self.views |= views;
            self.whole = true;
        }
    }

    /// What is to be forgotten, is to be forgotten in these views too.
    pub(crate) fn extend_to_views(&mut self, views: u64) {
        if self.views != 0 {
            self.views |= views;
        }
    }

    fn add_range(&mut self, range: GfnRange) {
        // Work comes in ascending order: the last range is the one that grows.
        if let Some(last) = self.ranges[..self.count].last_mut()
            && last.start() <= range.start()
            && range.start() <= last.end()
        {
            *last = last.hull(range);
            return;
        }
        if self.count == RANGES {
            self.join_nearest(range);
        } else {
            self.ranges[self.count] = range;
            self.count += 1;
        }
    }

    /// Makes room by joining two neighbours with the smallest gap.
    fn join_nearest(&mut self, range: GfnRange) {
        let gap = |a: GfnRange, b: GfnRange| a.hull(b).len().saturating_sub(a.len() + b.len());
        let with_new = gap(self.ranges[RANGES - 1], range);
        let inside = (0..RANGES - 1)
            .map(|index| (gap(self.ranges[index], self.ranges[index + 1]), index))
            .min_by_key(|&(gap, _)| gap);
        match inside {
            Some((gap, index)) if gap < with_new => {
                self.ranges[index] = self.ranges[index].hull(self.ranges[index + 1]);
                self.ranges.copy_within(index + 2.., index + 1);
                self.ranges[RANGES - 1] = range;
            }
            _ => self.ranges[RANGES - 1] = self.ranges[RANGES - 1].hull(range),
        }
    }

    /// Takes over what `other` asks for, but for its tables.
    pub(crate) fn absorb(&mut self, other: &Self) {
        self.guest = other.guest;
        self.views |= other.views;
        self.removed |= other.removed;
        self.whole |= other.whole;
        for range in &other.ranges[..other.count] {
            self.add_range(*range);
        }
    }
}

impl fmt::Debug for TlbFlush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlbFlush")
            .field("views", &format_args!("{:#x}", self.views))
            .field("ranges", &self.ranges())
            .field("tables", &self.tables)
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> GfnRange {
        GfnRange::from_len(Gfn::new(start), count)
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut flush = TlbFlush::none();
        for page in 0..100 {
            flush.add(1, range(page, 1));
        }
        assert_eq!(flush.ranges(), Some(&[range(0, 100)][..]));
    }

    #[test]
    fn the_nearest_are_joined_and_nothing_is_lost() {
        let mut flush = TlbFlush::none();
        let starts = [0, 100, 110, 300, 400, 500, 600, 700, 800, 900, 1000];
        for start in starts {
            flush.add(1, range(start, 1));
        }
        assert_eq!(flush.ranges().map(<[GfnRange]>::len), Some(RANGES));
        for start in starts {
            assert!(flush.covers(View::MAIN, Gfn::new(start)));
        }
        assert!(flush.covers(View::MAIN, Gfn::new(105)));
        assert!(!flush.covers(View::MAIN, Gfn::new(50)));
    }

    #[test]
    fn ascending_ranges_are_all_covered() {
        let mut flush = TlbFlush::none();
        for start in 0..20 {
            flush.add_ascending(1, range(start * 1000, 2));
        }
        assert_eq!(flush.ranges().map(<[GfnRange]>::len), Some(RANGES));
        for start in 0..20 {
            assert!(flush.covers(View::MAIN, Gfn::new(start * 1000 + 1)));
        }
        assert!(!flush.covers(View::MAIN, Gfn::new(500)));
    }

    #[test]
    fn an_empty_range_concerns_nobody() {
        let mut flush = TlbFlush::none();
        flush.add(1, GfnRange::EMPTY);
        assert!(flush.is_empty());
    }
}
