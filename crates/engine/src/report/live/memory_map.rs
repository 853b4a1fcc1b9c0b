//! What has happened to the guest's memory, by cell.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hikkoshi_pages::{Page, PageRange};

use super::missing::MissingRanges;

/// The most cells of a map.
pub const MAX_CELLS: u64 = 1024;

/// The fewest pages of a cell: 2 MiB.
const MIN_PAGES: u64 = 512;

/// Counts by cell: a part of the guest's memory, all of equal size. Counting costs an atomic
/// addition for each run of pages.
#[derive(Debug)]
pub struct MemoryMap {
    pages: u64,
    /// Pages of a cell are two to this power.
    shift: u32,
    cells: Box<[Counts]>,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// Pages that were dirty when the dirty log was taken (source). In the first round only with a
    /// log in which they were clean at first.
    Dirty,
    /// Pages that were sent, or have arrived, in pre-copy.
    Copied,
    /// Pages that were sent, or have arrived, because they were requested.
    Urgent,
    /// Pages that were sent, or have arrived, in post-copy without a request.
    Background,
}

/// The counts of one cell so far. Each only grows, except `owed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CellCounts {
    /// Pages whose dirty log was taken, in pre-copy (source): those that are in `dirty` if they
    /// were dirty.
    pub taken: u64,
    /// For how long the log had recorded writes to them: the sum over all these pages, in page
    /// microseconds.
    pub recorded_us: u64,
    /// See [`Cell::Dirty`].
    pub dirty: u64,
    /// See [`Cell::Copied`].
    pub copied: u64,
    /// See [`Cell::Urgent`].
    pub urgent: u64,
    /// See [`Cell::Background`].
    pub background: u64,
    /// Pages that are missing, in post-copy.
    pub missing: u64,
}

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    recorded_us: AtomicU64,
    dirty: AtomicU64,
    copied: AtomicU64,
    urgent: AtomicU64,
    background: AtomicU64,
    /// Urgent and background pages that make the cell complete.
    owed: AtomicU64,
}

impl Counts {
    fn counter(&self, what: Cell) -> &AtomicU64 {
        match what {
            Cell::Dirty => &self.dirty,
            Cell::Copied => &self.copied,
            Cell::Urgent => &self.urgent,
            Cell::Background => &self.background,
        }
    }

    fn arrived(&self) -> u64 {
        self.urgent.load(Relaxed) + self.background.load(Relaxed)
    }
}

impl MemoryMap {
    /// For a guest of so many pages.
    pub(crate) fn new(pages: u64) -> Self {
        let cell_pages = pages
            .div_ceil(MAX_CELLS)
            .checked_next_power_of_two()
            .unwrap_or(1 << 63)
            .max(MIN_PAGES);
        let shift = cell_pages.trailing_zeros();
        let cells = pages.div_ceil(cell_pages);
        Self {
            pages,
            shift,
            cells: (0..cells).map(|_| Counts::default()).collect(),
        }
    }

    /// Pages of a cell. The last one may have fewer.
    pub fn cell_pages(&self) -> u64 {
        1 << self.shift
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.cells.len()
    }

    /// Pages of this cell.
    pub fn pages_of(&self, cell: usize) -> u64 {
        let before = (cell as u64).saturating_mul(self.cell_pages());
        self.pages.saturating_sub(before).min(self.cell_pages())
    }

    /// The cell of a page.
    pub fn cell_of(&self, page: Page) -> usize {
        usize::try_from(page.index() >> self.shift).unwrap_or(usize::MAX)
    }

    /// The counts of one cell; zeros if there is no such cell.
    pub fn cell(&self, number: usize) -> CellCounts {
        let Some(counts) = self.cells.get(number) else {
            return CellCounts::default();
        };
        CellCounts {
            // Before what belongs to it, which is counted first.
            taken: counts.taken.load(Relaxed),
            recorded_us: counts.recorded_us.load(Relaxed),
            dirty: counts.dirty.load(Relaxed),
            copied: counts.copied.load(Relaxed),
            urgent: counts.urgent.load(Relaxed),
            background: counts.background.load(Relaxed),
            // Read after what has arrived: at worst a page counts as missing that is not any more.
            missing: {
                let arrived = counts.arrived();
                counts.owed.load(Relaxed).saturating_sub(arrived)
            },
        }
    }

    /// Pages that are missing in all cells, in post-copy.
    pub(crate) fn missing(&self) -> u64 {
        (0..self.cells()).map(|cell| self.cell(cell).missing).sum()
    }

    /// Counts `pages`.
    pub(crate) fn add(&self, what: Cell, pages: PageRange) {
        self.each(pages, |counts, pages| {
            counts.counter(what).fetch_add(pages, Relaxed);
        });
    }

    /// The dirty log of `pages` was taken. It had recorded writes to them for so long.
    pub(crate) fn add_taken(&self, pages: PageRange, recorded: Duration) {
        let recorded = u64::try_from(recorded.as_micros()).unwrap_or(u64::MAX);
        self.each(pages, |counts, pages| {
            counts
                .recorded_us
                .fetch_add(recorded.saturating_mul(pages), Relaxed);
            counts.taken.fetch_add(pages, Relaxed);
        });
    }

    /// Exactly these pages are missing now. A page that arrives meanwhile may be counted wrongly:
    /// at the destination as missing although it has arrived.
    pub(crate) fn set_missing(&self, missing: &dyn MissingRanges) {
        for counts in &self.cells {
            counts.owed.store(counts.arrived(), Relaxed);
        }
        missing.each_missing(&mut |run| {
            self.each(run, |counts, pages| {
                counts.owed.fetch_add(pages, Relaxed);
            });
        });
    }

    fn each(&self, pages: PageRange, mut each: impl FnMut(&Counts, u64)) {
        let (mut from, end) = (pages.start().index(), pages.end().index());
        while from < end {
            let cell = from >> self.shift;
            let next = ((cell + 1) << self.shift).min(end);
            if let Some(counts) = usize::try_from(cell).ok().and_then(|n| self.cells.get(n)) {
                each(counts, next - from);
            }
            from = next;
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Missing(PageRange);

    impl MissingRanges for Missing {
        fn each_missing(&self, each: &mut dyn FnMut(PageRange)) {
            each(self.0);
        }
    }

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::from_len(Page::new(start), pages)
    }

    #[test]
    fn cells_are_2_mib_or_the_memory_has_1024_of_them() {
        for (pages, cells, cell_pages) in [
            (1, 1, 512),
            (513, 2, 512),
            (1 << 19, 1024, 512),
            ((1 << 19) + 1, 513, 1024),
            (1 << 28, 1024, 1 << 18),
            (0, 0, 512),
        ] {
            let map = MemoryMap::new(pages);
            assert_eq!(
                (map.cells(), map.cell_pages()),
                (cells, cell_pages),
                "{pages}"
            );
            let sum: u64 = (0..map.cells()).map(|cell| map.pages_of(cell)).sum();
            assert_eq!(sum, pages);
        }
    }

    #[test]
    fn a_page_that_arrives_is_not_missing() {
        let map = MemoryMap::new(2048);
        map.set_missing(&Missing(range(500, 20)));
        assert_eq!((map.cell(0).missing, map.cell(1).missing), (12, 8));
        map.add(Cell::Urgent, range(500, 1));
        map.add(Cell::Background, range(510, 4));
        assert_eq!((map.cell(0).missing, map.cell(1).missing), (9, 6));
        // After a reconnect: pages that were on their way are missing again.
        map.set_missing(&Missing(range(505, 12)));
        assert_eq!((map.cell(0).missing, map.cell(1).missing), (7, 5));
        assert_eq!(map.cell(0).background, 2);
    }

    #[test]
    fn a_cell_has_the_times_of_its_pages() {
        let map = MemoryMap::new(2048);
        map.add_taken(range(500, 20), Duration::from_millis(3));
        map.add_taken(range(0, 500), Duration::from_millis(1));
        let counts = [map.cell(0), map.cell(1)].map(|it| (it.taken, it.recorded_us));
        assert_eq!(counts, [(512, 536_000), (8, 24_000)]);
    }

    proptest! {
        #[test]
        fn every_page_is_counted_once(
            pages in 1_u64..5_000_000,
            runs in proptest::collection::vec((0_u64..5_000_000, 0_u64..100_000), 0..20),
        ) {
            let map = MemoryMap::new(pages);
            let mut expected = 0;
            for (start, length) in runs {
                let start = start.min(pages);
                let length = length.min(pages - start);
                map.add(Cell::Copied, range(start, length));
                expected += length;
            }
            let sum: u64 = (0..map.cells()).map(|cell| map.cell(cell).copied).sum();
            prop_assert_eq!(sum, expected);
            prop_assert!(map.cells() <= 1024);
        }
    }
}
