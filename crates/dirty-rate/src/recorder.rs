//! Computes rates and working sets from what each take has reported: [`Recorder`].

use std::collections::VecDeque;
use std::time::Duration;

use hikkoshi_pages::{PAGE_BYTES, PageRange, RamLayout};

use crate::estimate::{Collected, extrapolate};
use crate::measurement::{BlockRate, Cost, Measurement, RangeRate, Rates, Window};
use crate::ranges::{self, Part};
use crate::sample::Sample;
use crate::tracked_block::TrackedBlock;
use crate::windows::{MAX_INTERVALS, window_lengths};

/// Records the dirty pages of each interval. Does no I/O: the caller takes the log.
///
/// ```
/// use std::time::Duration;
///
/// use hikkoshi_dirty_rate::Recorder;
/// use hikkoshi_pages::{Page, PageRange, RamBlock, RamLayout};
///
/// let block = RamBlock { id: "ram".into(), bytes: 1 << 20, host_page: 4096, guest: vec![] };
/// let layout = RamLayout::new(vec![block])?;
/// let second = Duration::from_secs(1);
/// let mut recorder = Recorder::new(&layout, second, 2, 0);
/// for page in [3, 4] {
///     recorder.begin_interval();
///     recorder.dirty(PageRange::new(Page::new(3), Page::new(page + 1)));
///     recorder.end_interval(second);
/// }
/// let result = recorder.finish();
/// let sets: Vec<(u32, f64, f64)> =
///     result.total.windows.iter().map(|set| (set.intervals, set.mean, set.max)).collect();
/// // In one second one page and then two, in two seconds two different pages.
/// assert_eq!(sets, [(1, 1.5, 2.0), (2, 2.0, 2.0)]);
/// # Ok::<(), hikkoshi_pages::LayoutError>(())
/// ```
#[derive(Debug)]
pub struct Recorder {
    layout: RamLayout,
    interval: Duration,
    lengths: Vec<u32>,
    blocks: Vec<TrackedBlock>,
    collected: Vec<Collected>,
    total: Collected,
    level: u8,
    /// The pages of each block that are in the sample.
    measured: Vec<u64>,
    now: u16,
    elapsed: Duration,
    /// The times of the takes that ended the last intervals, the first of them that of the start.
    times: VecDeque<Duration>,
}

impl Recorder {
    /// For a measurement of at most `intervals` intervals, at most [`MAX_INTERVALS`], of this
    /// length. `seed` chooses the samples.
    #[must_use]
    pub fn new(layout: &RamLayout, interval: Duration, intervals: u32, seed: u64) -> Self {
        let lengths = window_lengths(interval, intervals.min(MAX_INTERVALS));
        let blocks = layout.blocks().map(|(block, pages)| {
            let sample = Sample::new(pages, block.host_page / PAGE_BYTES, seed);
            TrackedBlock::new(sample, lengths.len())
        });
        let blocks: Vec<_> = blocks.collect();
        let mut recorder = Self {
            layout: layout.clone(),
            interval,
            collected: vec![Collected::new(lengths.len()); blocks.len()],
            total: Collected::new(lengths.len()),
            level: 0,
            measured: Vec::new(),
            now: 0,
            elapsed: Duration::ZERO,
            times: VecDeque::from([Duration::ZERO]),
            lengths,
            blocks,
        };
        recorder.count_measured();
        recorder
    }

    /// The ranges that the caller takes in each interval, in order.
    #[must_use]
    pub fn sample(&self) -> Vec<PageRange> {
        let blocks = self.blocks.iter();
        blocks
            .flat_map(|block| block.sample.ranges(self.level))
            .collect()
    }

    /// The highest level of sampling: the sample does not become smaller.
    #[must_use]
    pub fn max_level(&self) -> u8 {
        let levels = self.blocks.iter().map(|block| block.sample.deepest());
        levels.max().unwrap_or(0)
    }

    /// About how many pages the sample of a level has, and how many ranges.
    #[must_use]
    pub fn sample_size(&self, level: u8) -> (u64, u64) {
        let sizes = self.blocks.iter().map(|block| block.sample.size(level));
        sizes.fold((0, 0), |(pages, ranges), of_block| {
            (pages + of_block.0, ranges + of_block.1)
        })
    }

    /// The level of sampling: 0 is all memory.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Halves the sample this many times: all memory is level 0. Call it between two intervals.
    /// After the first interval the level only rises: nothing would be known of the pages that are
    /// added. Returns whether the level has changed.
    pub fn set_level(&mut self, level: u8) -> bool {
        let level = level.min(self.max_level());
        if level == self.level || (level < self.level && self.now > 0) {
            return false;
        }
        self.level = level;
        self.count_measured();
        true
    }

    /// Begins an interval. Does nothing after [`MAX_INTERVALS`] intervals.
    pub fn begin_interval(&mut self) {
        let Some(now) = self.now.checked_add(1) else {
            return;
        };
        self.now = now;
        for block in &mut self.blocks {
            block.begin(now, &self.lengths);
        }
    }

    /// Records pages that the take at the end of this interval has reported.
    pub fn dirty(&mut self, run: PageRange) {
        for extent in self.layout.locate_range(run) {
            if let Some(block) = self.blocks.get_mut(extent.block) {
                block.dirty(extent.pages, self.now, &self.lengths);
            }
        }
    }

    /// Ends an interval that was this long.
    pub fn end_interval(&mut self, length: Duration) {
        self.elapsed += length;
        self.times.push_back(self.elapsed);
        let longest = self.lengths.last().copied().unwrap_or(1);
        while self.times.len() > index(longest).saturating_add(1) {
            self.times.pop_front();
        }
        let level = self.level;
        let mut sum = 0.0;
        for (number, block) in self.blocks.iter().enumerate() {
            let pages = self.estimate(number, block.reported(level));
            self.collected[number].interval(pages, length);
            sum += pages;
        }
        self.total.interval(sum, length);
        for window in 0..self.lengths.len() {
            let intervals = self.lengths[window];
            if intervals > u32::from(self.now) {
                break;
            }
            let length = self.time_of_last(intervals);
            let mut sum = 0.0;
            for (number, block) in self.blocks.iter().enumerate() {
                let pages = self.estimate(number, block.different(level, window));
                self.collected[number].window(window, pages, length);
                sum += pages;
            }
            self.total.window(window, sum, length);
        }
    }

    /// The pages of the sample that this interval has reported.
    #[must_use]
    pub fn reported(&self) -> u64 {
        let blocks = self.blocks.iter();
        blocks.map(|block| block.reported(self.level)).sum()
    }

    /// The number of intervals so far.
    #[must_use]
    pub fn intervals(&self) -> u32 {
        u32::from(self.now)
    }

    /// The results.
    #[must_use]
    pub fn finish(self) -> Measurement {
        let ended_early = !self.lengths.contains(&self.intervals()) && self.now > 0;
        let whole: Vec<f64> = (0..self.blocks.len())
            .map(|number| {
                let longest = self.lengths.len().saturating_sub(1);
                self.estimate(number, self.blocks[number].different(self.level, longest))
            })
            .collect();
        let last = |pages: f64| {
            ended_early.then(|| Window {
                intervals: self.intervals(),
                mean_length: self.elapsed,
                windows: 1,
                mean: pages,
                max: pages,
            })
        };
        let ranges = self.ranges();
        let total: Rates = self.total.clone().rates(
            self.layout.pages(),
            self.measured.iter().sum(),
            &self.lengths,
            last(whole.iter().sum()),
        );
        let blocks = self.layout.blocks().enumerate();
        let blocks = blocks.map(|(number, (block, pages))| BlockRate {
            id: block.id.clone(),
            rates: self.collected[number].clone().rates(
                pages.len(),
                self.measured[number],
                &self.lengths,
                last(whole[number]),
            ),
        });
        Measurement {
            interval: self.interval,
            intervals: self.intervals(),
            elapsed: self.elapsed,
            ended: None,
            blocks: blocks.collect(),
            total,
            ranges,
            cost: Cost::default(),
            cancelled: false,
        }
    }

    fn ranges(&self) -> Vec<RangeRate> {
        let blocks = self.blocks.iter().map(|block| {
            let groups = block.sample.groups(self.level);
            let parts = groups.map(|(pages, unit)| Part {
                pages,
                measured: unit.len(),
                reports: block.reports(unit),
            });
            ranges::coarsen(parts, block.sample.group_count(self.level))
        });
        ranges::ranges(blocks, self.elapsed)
    }

    /// The time of the last intervals.
    fn time_of_last(&self, intervals: u32) -> Duration {
        let start = self.times.len().checked_sub(index(intervals) + 1);
        let start = start.and_then(|start| self.times.get(start));
        self.elapsed
            .saturating_sub(start.copied().unwrap_or_default())
    }

    fn estimate(&self, block: usize, found: u64) -> f64 {
        let all = self.blocks[block].sample.pages().len();
        extrapolate(found, self.measured[block], all)
    }

    fn count_measured(&mut self) {
        let measured = self.blocks.iter().map(|block| {
            let ranges = block.sample.ranges(self.level);
            ranges.iter().map(|range| range.len()).sum()
        });
        self.measured = measured.collect();
    }
}

fn index(intervals: u32) -> usize {
    usize::try_from(intervals).unwrap_or(usize::MAX)
}
