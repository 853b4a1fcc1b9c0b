//! The results of a measurement.

use std::time::{Duration, Instant};

use hikkoshi_pages::PageRange;

/// What was measured. Numbers of pages are estimates where a sample was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The interval that was requested.
    pub interval: Duration,
    /// The number of intervals.
    pub intervals: u32,
    /// The time from the first take to the last.
    pub elapsed: Duration,
    /// When the last take began. `None`: it was not made by [`measure`](crate::measure()).
    pub ended: Option<Instant>,
    /// Of all measured memory.
    pub total: Rates,
    /// By block, in the order of the layout.
    pub blocks: Vec<BlockRate>,
    /// Ranges of memory with about the same rate, in the order of the layout. The ranges of a block
    /// cover it.
    pub ranges: Vec<RangeRate>,
    /// What measuring has cost.
    pub cost: Cost,
    /// Whether it was cancelled before the time was over.
    pub cancelled: bool,
}

/// The rate of a part of memory, and its working sets.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// All pages of the part.
    pub pages: u64,
    /// The pages that were measured until the end: less than `pages` if only a sample was.
    pub measured_pages: u64,
    /// Pages that were dirtied in a second.
    pub pages_per_second: PagesPerSecond,
    /// Working sets, from the shortest window to the longest.
    pub windows: Vec<Window>,
}

/// The dirty pages of an interval divided by its length.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PagesPerSecond {
    /// All dirty pages divided by the whole time.
    pub mean: f64,
    /// The median of the intervals.
    pub median: f64,
    /// The interval with the highest rate.
    pub max: f64,
}

/// The number of different pages that were written in a window of adjacent intervals: over all
/// windows of the same length. Windows overlap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// The length, in intervals.
    pub intervals: u32,
    /// How long these windows were on average. A take that is late makes an interval longer.
    pub mean_length: Duration,
    /// The number of windows.
    pub windows: u32,
    /// The mean number of different pages.
    pub mean: f64,
    /// The largest number.
    pub max: f64,
}

/// A block of the layout.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockRate {
    /// The name of the block.
    pub id: String,
    /// Its rates.
    pub rates: Rates,
}

/// A range of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RangeRate {
    /// The number of the block in the layout.
    pub block: usize,
    /// The pages.
    pub pages: PageRange,
    /// Pages that were dirtied in a second, on average.
    pub pages_per_second: f64,
    /// The different pages that were written in the whole measurement.
    pub different: f64,
    /// Whether it is written more than other memory: at least four times as often as the mean of
    /// all measured pages, and at least a hundredth of all that was dirtied.
    pub hot: bool,
}

/// What measuring has cost, without its start and its end.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// The time of all takes.
    pub takes: Duration,
    /// The longest take.
    pub longest_take: Duration,
    /// The page faults of the guest: one for each page that a take has found dirty.
    pub faults: u64,
    /// An estimate of the part of one vCPU's time that the guest has lost: by the time of the
    /// takes, and by what a fault costs ([`Options::fault_cost`](crate::Options::fault_cost)).
    pub share: f64,
    /// How long preparing took: to find out what a take costs, and how much of the memory to
    /// measure.
    pub preparation: Duration,
}
