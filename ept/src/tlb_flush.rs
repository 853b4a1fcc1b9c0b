//! Pending TLB flushes: the cached translations to invalidate after a change of the tables.

use core::fmt;

use crate::address::{Gfn, GfnRange, HostFrame};
use crate::view::View;

/// Number of separate ranges in a [`TlbFlush`]; the nearest two are joined when there are more.
const RANGES: usize = 8;

/// A pending TLB flush: processors may still use translations that the tables no longer contain.
///
/// Pass it to [`Guest::flush`](crate::Guest::flush), at once or after combining several with
/// [`Guest::batch`](crate::Guest::batch). Until then the guest can continue to read and write
/// through the old translations, and detached tables and the numbers of removed views stay
/// allocated. Dropping a flush leaks them, which is safe; freeing them early would not be (SDM vol.
/// 3C, "Caching Translation Information": processors cache references to tables as well as leaves).
///
/// Code that ignores the returned flush does not compile if warnings are errors:
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
#[must_use = "processors keep using the old translations until this is passed to Guest::flush"]
#[derive(Default)]
pub struct TlbFlush {
    views: u64,
    /// [`Guest::id`](crate::Guest) of the guest that the flush belongs to; zero if it was created
    /// by [`TlbFlush::none`].
    guest: usize,
    /// Views whose numbers become available when the flush is done.
    removed: u64,
    whole: bool,
    count: usize,
    ranges: [GfnRange; RANGES],
    pub(crate) tables: Option<TableList>,
}

/// Detached tables, linked through their first words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableList {
    pub(crate) first: HostFrame,
    pub(crate) last: HostFrame,
}

impl TlbFlush {
    /// Creates an empty flush.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether there is nothing to invalidate or to free.
    pub fn is_empty(&self) -> bool {
        self.views == 0 && self.tables.is_none()
    }

    /// Whether translations of `view` have to be invalidated.
    pub fn applies_to(&self, view: View) -> bool {
        self.views & view.bit() != 0
    }

    /// Returns the addresses to invalidate, as guest frames of each view that the flush applies to:
    /// translations of any size that cover one of them. `None` means all addresses. (Intel's
    /// `INVEPT` does not take addresses: it invalidates all translations of one view or of all
    /// views.)
    pub fn ranges(&self) -> Option<&[GfnRange]> {
        if self.whole {
            None
        } else {
            Some(&self.ranges[..self.count])
        }
    }

    /// Whether a translation of `at` in `view` has to be invalidated.
    pub fn covers(&self, view: View, at: Gfn) -> bool {
        self.applies_to(view)
            && self
                .ranges()
                .is_none_or(|ranges| ranges.iter().any(|range| range.contains(at)))
    }

    /// Creates an empty flush for a guest.
    pub(crate) fn for_guest(guest: usize) -> Self {
        Self {
            guest,
            ..Self::default()
        }
    }

    /// Panics if the flush belongs to another guest.
    pub(crate) fn assert_guest(&self, guest: usize) {
        assert!(
            self.guest == guest || self.is_empty(),
            "a TLB flush was passed to a guest that it does not belong to"
        );
    }

    pub(crate) fn views(&self) -> u64 {
        self.views
    }

    pub(crate) fn removed(&self) -> u64 {
        self.removed
    }

    /// Adds views that were removed.
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

    /// Adds one of many ranges in ascending order: the first few stay separate, and the last one
    /// covers the rest. A take of a thousand pages should not spend time searching for the nearest
    /// ranges.
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

    /// Extends a flush that is not empty to these views.
    pub(crate) fn extend_to_views(&mut self, views: u64) {
        if self.views != 0 {
            self.views |= views;
        }
    }

    fn add_range(&mut self, range: GfnRange) {
        // Ranges usually arrive in ascending order: the last range grows.
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

    /// Makes space by joining the two neighbours with the smallest gap.
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

    /// Adds everything of `other` except its tables.
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
    fn adjacent_ranges_are_joined() {
        let mut flush = TlbFlush::none();
        for page in 0..100 {
            flush.add(1, range(page, 1));
        }
        assert_eq!(flush.ranges(), Some(&[range(0, 100)][..]));
    }

    #[test]
    fn the_nearest_ranges_are_joined_and_all_addresses_stay_covered() {
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
    fn an_empty_range_adds_nothing() {
        let mut flush = TlbFlush::none();
        flush.add(1, GfnRange::EMPTY);
        assert!(flush.is_empty());
    }
}
