//! The ranges of memory that the guest wrote to most in pre-copy (`web/js/memory.js` finds the same
//! ones).

use hikkoshi_status::{Block, DirtyRates, MAX_CELLS, Memory, Recording};

/// The most ranges: the hottest.
const MOST: usize = 10;

/// A hot cell is dirtied so much more than the mean cell, as for `hikkoshi dirty-rate`.
const HOT: u128 = 4;

/// A hot cell has at least one of so many parts of all that is dirtied.
const HOT_SHARE: u128 = 100;

/// Adjacent hot cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HotRange {
    /// The RAM block that has most of it.
    pub(super) block: Option<String>,
    /// Where it begins in the block, and its length, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// The guest-physical address of its first byte, if that is mapped.
    pub(super) address: Option<u64>,
    /// Pages per second on average.
    pub(super) mean: u64,
    /// Pages per second of the cell that was written most, at the worst time.
    pub(super) highest: u64,
}

/// A cell and where it is.
struct Cell<'a> {
    block: Option<&'a Block>,
    /// In bytes, in the block.
    offset: u64,
    bytes: u64,
    address: Option<u64>,
}

/// The hot ranges, the hottest first.
pub(super) fn hot_ranges(recording: &Recording) -> Vec<HotRange> {
    let memory = &recording.migration.memory;
    let Some(DirtyRates { highest, mean, .. }) = &recording.dirty_rates else {
        return Vec::new();
    };
    let cells = usize::try_from(memory.cells()).map_or(MAX_CELLS, |cells| cells.min(MAX_CELLS));
    let hot = |rates: &[u64]| {
        let rates = rates.iter().take(cells).map(|rate| u128::from(*rate));
        let all: u128 = rates.clone().sum();
        let is_hot =
            |rate: u128| rate > 0 && rate * cells as u128 >= all * HOT && rate * HOT_SHARE >= all;
        rates.map(is_hot).collect::<Vec<_>>()
    };
    let (by_highest, by_mean) = (hot(highest), hot(mean));
    let is_hot = |cell: usize| {
        let in_list = |list: &Vec<bool>| list.get(cell).copied().unwrap_or(false);
        in_list(&by_highest) || in_list(&by_mean)
    };
    let mut ranges: Vec<HotRange> = Vec::new();
    let mut before = None;
    for number in (0..cells).filter(|&cell| is_hot(cell)) {
        let cell = cell(memory, number as u64);
        let rate = |list: &[u64]| list.get(number).copied().unwrap_or(0);
        let (peak, mean) = (rate(highest), rate(mean));
        let adjacent = before
            .replace(number)
            .is_some_and(|before| before + 1 == number);
        match ranges.last_mut() {
            Some(range) if adjacent && range.continues_in(&cell) => {
                range.bytes = range.bytes.saturating_add(cell.bytes);
                range.mean = range.mean.saturating_add(mean);
                range.highest = range.highest.max(peak);
            }
            _ => ranges.push(HotRange {
                block: cell.block.map(|block| block.id.clone()),
                offset: cell.offset,
                bytes: cell.bytes,
                address: cell.address,
                mean,
                highest: peak,
            }),
        }
    }
    ranges.sort_by_key(|range| std::cmp::Reverse((range.mean, range.highest)));
    ranges.truncate(MOST);
    ranges
}

impl HotRange {
    fn continues_in(&self, cell: &Cell<'_>) -> bool {
        let address = self
            .address
            .map(|address| address.saturating_add(self.bytes));
        self.block.as_deref() == cell.block.map(|block| block.id.as_str())
            && self.offset.saturating_add(self.bytes) == cell.offset
            && address == cell.address
    }
}

fn cell(memory: &Memory, number: u64) -> Cell<'_> {
    let first = number.saturating_mul(memory.cell_pages);
    let pages = memory.pages.saturating_sub(first).min(memory.cell_pages);
    let end = first.saturating_add(pages);
    let part = |block: &&Block| {
        let block_end = block.first_page.saturating_add(block.pages);
        block_end
            .min(end)
            .saturating_sub(block.first_page.max(first))
    };
    // Of equal ones the first.
    let block = memory.blocks.iter().rev().max_by_key(part);
    let block = block.filter(|block| part(block) > 0);
    let offset = first.saturating_sub(block.map_or(0, |block| block.first_page));
    let offset = offset.saturating_mul(memory.page_bytes);
    let ranges = block.map_or(&[][..], |block| &block.guest);
    let mapped = ranges.iter().find_map(|range| {
        let inside = offset.checked_sub(range.offset)?;
        (inside < range.bytes).then(|| range.address.saturating_add(inside))
    });
    Cell {
        block,
        offset,
        bytes: pages.saturating_mul(memory.page_bytes),
        address: mapped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hikkoshi_account::Side;
    use hikkoshi_status::{GuestRange, Migration};

    const CELL: u64 = 512 * 4096;

    /// A guest of 40 cells: 30 in `pc.ram`, of which the last 10 are mapped elsewhere, and 10 in a
    /// block that is not mapped.
    fn recording(rates: Option<DirtyRates>) -> Recording {
        let block = |id: &str, first: u64, cells: u64, guest: Vec<GuestRange>| Block {
            id: id.into(),
            first_page: first * 512,
            pages: cells * 512,
            guest,
        };
        let range = |address, first: u64, cells: u64| GuestRange {
            address,
            offset: first * CELL,
            bytes: cells * CELL,
        };
        let mapped = vec![range(0, 0, 20), range(1 << 32, 20, 10)];
        let mut migration = Migration::new("id", Side::Source, "web");
        migration.memory = Memory {
            pages: 40 * 512,
            page_bytes: 4096,
            cell_pages: 512,
            blocks: vec![
                block("pc.ram", 0, 30, mapped),
                block("vga", 30, 10, Vec::new()),
            ],
        };
        Recording {
            dirty_rates: rates,
            ..Recording::new(migration)
        }
    }

    fn rates(list: &[(usize, u64, u64)]) -> DirtyRates {
        let (mut mean, mut highest) = (vec![1; 40], vec![2; 40]);
        for &(cell, of_mean, of_highest) in list {
            (mean[cell], highest[cell]) = (of_mean, of_highest);
        }
        DirtyRates {
            measured_ms: 1000,
            highest,
            mean,
        }
    }

    #[test]
    fn neighbours_are_one_range_with_its_address() {
        // 18 to 21 cross the hole in the guest's addresses, and 29 and 30 two blocks.
        let hot = [18, 19, 20, 21, 29, 30].map(|cell| (cell, 100, 300));
        let mut list = hot.to_vec();
        // Hot for a moment only.
        list.push((5, 1, 900));
        let found = hot_ranges(&recording(Some(rates(&list))));
        let range = |block: &str, first: u64, cells: u64, address, mean: u64, highest| HotRange {
            block: Some(block.into()),
            offset: first * CELL,
            bytes: cells * CELL,
            address,
            mean,
            highest,
        };
        let expected = [
            range("pc.ram", 18, 2, Some(18 * CELL), 200, 300),
            range("pc.ram", 20, 2, Some(1 << 32), 200, 300),
            range("pc.ram", 29, 1, Some((1 << 32) + 9 * CELL), 100, 300),
            range("vga", 0, 1, None, 100, 300),
            range("pc.ram", 5, 1, Some(5 * CELL), 1, 900),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn memory_that_is_written_evenly_has_no_hot_range() {
        assert_eq!(hot_ranges(&recording(Some(rates(&[])))), []);
        assert_eq!(hot_ranges(&recording(Some(DirtyRates::default()))), []);
        assert_eq!(hot_ranges(&recording(None)), []);
    }

    #[test]
    fn numbers_from_outside_do_no_harm() {
        let mut all = rates(&[(3, u64::MAX, u64::MAX), (4, u64::MAX, u64::MAX)]);
        all.highest.resize(100_000, u64::MAX);
        let mut recording = recording(Some(all));
        let mut range = HotRange {
            block: Some("pc.ram".into()),
            offset: 3 * CELL,
            bytes: 2 * CELL,
            address: Some(3 * CELL),
            mean: u64::MAX,
            highest: u64::MAX,
        };
        assert_eq!(hot_ranges(&recording), [range.clone()]);
        recording.migration.memory.blocks[0].guest[0].address = u64::MAX;
        range.address = Some(u64::MAX);
        assert_eq!(hot_ranges(&recording), [range.clone()]);
        // All of it is one cell.
        recording.migration.memory.cell_pages = u64::MAX;
        assert_eq!(hot_ranges(&recording), []);
        // The cells have no pages.
        recording.migration.memory.cell_pages = 0;
        recording.migration.memory.blocks[0].first_page = u64::MAX;
        range = HotRange {
            block: None,
            offset: 0,
            bytes: 0,
            address: None,
            ..range
        };
        assert_eq!(hot_ranges(&recording), [range]);
    }
}
