//! Which part of a block is measured.

use hikkoshi_pages::{Page, PageRange};

/// The pages of a unit: 32 KiB. The more units a sample of the same size has, the more precise it
/// is, but each unit is a system call for each take.
pub(crate) const UNIT_PAGES: u64 = 8;

/// A block has at least about as many units in its sample. Smaller blocks are measured wholly.
const MIN_UNITS: u64 = 16;

/// The *units* of a block, and which of them are in the sample of each *level*.
///
/// Level 0 is the whole block. Each level has half of the units of the level before: one of each
/// two adjacent groups of units, chosen at random. So level `n` has exactly one unit of each group
/// of 2^n adjacent units, wherever the guest writes. Samples are nested: a unit of a level is in
/// all lower levels.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pages: PageRange,
    unit: u64,
    deepest: u8,
    seed: u64,
}

impl Sample {
    /// For the block with these pages, which the kernel maps in pages of `host_page` pages: a unit
    /// is not smaller.
    pub(crate) fn new(pages: PageRange, host_page: u64, seed: u64) -> Self {
        let unit = UNIT_PAGES.max(host_page);
        let groups = pages.len().div_ceil(unit) / MIN_UNITS;
        let deepest = u8::try_from(groups.checked_ilog2().unwrap_or(0)).unwrap_or(u8::MAX);
        Self {
            pages,
            unit,
            deepest,
            // A different sample for each block.
            seed: mix(seed ^ pages.start().index()),
        }
    }

    /// The pages of the block.
    pub(crate) fn pages(&self) -> PageRange {
        self.pages
    }

    /// The highest level of this block: a higher level of the measurement is this one here.
    pub(crate) fn deepest(&self) -> u8 {
        self.deepest
    }

    /// The highest level whose sample has this page of the block.
    pub(crate) fn level_of(&self, page: Page) -> u8 {
        let unit = page.index().saturating_sub(self.pages.start().index()) / self.unit;
        let is_chosen =
            |level: &u8| self.choice(*level, unit >> (level + 1)) == (unit >> level) & 1;
        let levels = (0..self.deepest).take_while(is_chosen).count();
        u8::try_from(levels).unwrap_or(u8::MAX)
    }

    /// For each group of the level, the pages of the group and of its unit in the sample, in order.
    /// The unit of the last group may be beyond the end of the block, and then is empty.
    pub(crate) fn groups(&self, level: u8) -> impl Iterator<Item = (PageRange, PageRange)> + '_ {
        let level = level.min(self.deepest);
        let group_pages = self.unit << level;
        (0..self.group_count(level)).map(move |group| {
            let mut unit = group;
            for level in (0..level).rev() {
                unit = unit << 1 | self.choice(level, unit);
            }
            let range = |number, pages| {
                let start = self.pages.start().saturating_add(number * pages);
                PageRange::from_len(start, pages).intersect(self.pages)
            };
            (range(group, group_pages), range(unit, self.unit))
        })
    }

    /// The number of pages in the sample of a level, and the number of ranges. A few less, if the
    /// last group is incomplete or units are adjacent.
    pub(crate) fn size(&self, level: u8) -> (u64, u64) {
        match level.min(self.deepest) {
            0 => (self.pages.len(), 1),
            level => {
                let groups = self.group_count(level);
                ((groups * self.unit).min(self.pages.len()), groups)
            }
        }
    }

    /// The number of groups of a level.
    pub(crate) fn group_count(&self, level: u8) -> u64 {
        let group_pages = self.unit << level.min(self.deepest);
        self.pages.len().div_ceil(group_pages)
    }

    /// The ranges of the sample of a level: adjacent units are one range.
    pub(crate) fn ranges(&self, level: u8) -> Vec<PageRange> {
        if level.min(self.deepest) == 0 {
            return vec![self.pages];
        }
        let mut ranges: Vec<PageRange> = Vec::new();
        for (_, unit) in self.groups(level).filter(|(_, unit)| !unit.is_empty()) {
            match ranges.last_mut() {
                Some(last) if last.end() == unit.start() => {
                    *last = PageRange::new(last.start(), unit.end());
                }
                _ => ranges.push(unit),
            }
        }
        ranges
    }

    /// Which half of a group is kept: 0 or 1.
    fn choice(&self, level: u8, group: u64) -> u64 {
        mix(self.seed ^ mix(group << 8 | u64::from(level))) & 1
    }
}

/// SplitMix64's finalizer (G. L. Steele et al., "Fast Splittable Pseudorandom Number Generators",
/// OOPSLA 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test's failure is the message
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(start: u64, pages: u64, seed: u64) -> Sample {
        Sample::new(PageRange::from_len(Page::new(start), pages), 1, seed)
    }

    proptest! {
        #[test]
        fn a_level_has_one_unit_of_each_group_and_is_part_of_the_level_below(
            start in 0_u64..1000, pages in 1_u64..20_000, seed: u64, level in 0_u8..8,
        ) {
            let sample = sample(start, pages, seed);
            let level = level.min(sample.deepest());
            let by_level: Vec<Page> = sample
                .pages()
                .iter()
                .filter(|page| sample.level_of(*page) >= level)
                .collect();
            let by_group: Vec<Page> =
                sample.groups(level).flat_map(|(_, unit)| unit.iter()).collect();
            prop_assert_eq!(&by_level, &by_group);
            let by_range: Vec<Page> =
                sample.ranges(level).iter().flat_map(|range| range.iter()).collect();
            prop_assert_eq!(&by_level, &by_range);
            for (group, unit) in sample.groups(level) {
                prop_assert!(group.contains_range(unit) || unit.is_empty());
            }
            let groups: u64 = sample.groups(level).map(|(group, _)| group.len()).sum();
            prop_assert_eq!(groups, pages);
        }
    }

    #[test]
    fn a_small_block_is_measured_wholly() {
        assert_eq!(sample(0, 31 * UNIT_PAGES, 1).deepest(), 0);
        assert_eq!(sample(0, 32 * UNIT_PAGES, 1).deepest(), 1);
        assert_eq!(sample(0, 1 << 28, 1).deepest(), 21);
        // 2 MiB at once.
        let huge = Sample::new(PageRange::from_len(Page::new(0), 1 << 18), 512, 1);
        assert_eq!(huge.deepest(), 5);
        assert!(huge.ranges(5).iter().all(|range| range.len() % 512 == 0));
    }

    #[test]
    fn samples_differ_by_their_seed() {
        let ranges = |seed| sample(0, 10_000, seed).ranges(3);
        assert_eq!(ranges(1), ranges(1));
        assert_ne!(ranges(1), ranges(2));
    }
}
