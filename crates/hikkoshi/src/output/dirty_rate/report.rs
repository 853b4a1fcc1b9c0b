//! The result of `hikkoshi dirty-rate`, as `--json` writes it (`docs/json.md`).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hikkoshi_dirty_rate::{BlockRate, Cost, Measurement, PagesPerSecond, RangeRate, Rates, Window};
use hikkoshi_pages::{PAGE_BYTES, RamLayout};
use serde::Serialize;

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct DirtyRateReport<'a> {
    pub(super) pid: u32,
    /// The time that was measured.
    pub(super) seconds: f64,
    /// When that time ended: milliseconds since 1970 (UTC).
    pub(super) ended_unix_ms: u64,
    pub(super) interval_ms: f64,
    pub(super) intervals: u32,
    /// Whether it was ended before the requested time.
    pub(super) cancelled: bool,
    /// Of all measured blocks.
    pub(super) total: RatesReport,
    pub(super) blocks: Vec<BlockReport<'a>>,
    pub(super) hot_ranges: Vec<RangeReport<'a>>,
    /// `null`: `--map` was not given.
    pub(super) map: Option<Vec<RangeReport<'a>>>,
    pub(super) cost: CostReport,
    pub(super) notes: &'a [String],
}

#[derive(Debug, Serialize)]
pub(super) struct RatesReport {
    pub(super) bytes: u64,
    /// Less than `bytes`: a sample was measured, and the numbers are extrapolated.
    pub(super) measured_bytes: u64,
    pub(super) pages_per_second: PerSecondReport,
    pub(super) bytes_per_second: PerSecondReport,
    pub(super) working_sets: Vec<WorkingSetReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct PerSecondReport {
    pub(super) mean: f64,
    pub(super) median: f64,
    pub(super) max: f64,
}

/// The different pages that were written in windows of this length.
#[derive(Debug, Serialize)]
pub(super) struct WorkingSetReport {
    /// The length: a number of intervals, as requested.
    pub(super) window_ms: f64,
    /// How long the windows really were, on average.
    pub(super) mean_window_ms: f64,
    pub(super) windows: u32,
    pub(super) mean_pages: f64,
    pub(super) max_pages: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct BlockReport<'a> {
    pub(super) id: &'a str,
    #[serde(flatten)]
    pub(super) rates: RatesReport,
}

#[derive(Debug, Serialize)]
pub(super) struct RangeReport<'a> {
    pub(super) block: &'a str,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Of the first byte. `null`: it is not mapped in the guest.
    pub(super) guest_address: Option<u64>,
    pub(super) pages_per_second: f64,
    /// In the whole measurement.
    pub(super) different_pages: f64,
    pub(super) hot: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct CostReport {
    pub(super) mean_take_ms: f64,
    pub(super) max_take_ms: f64,
    pub(super) faults_per_second: f64,
    /// Estimated.
    pub(super) vcpu_share: f64,
    pub(super) preparation_ms: f64,
}

impl<'a> DirtyRateReport<'a> {
    /// `map`: with all ranges. `layout`: that of the measurement.
    pub(crate) fn new(
        pid: u32,
        layout: &'a RamLayout,
        measured: &Measurement,
        map: bool,
        notes: &'a [String],
    ) -> Self {
        let ranges = || measured.ranges.iter();
        let range = |range| RangeReport::new(layout, range);
        let mut hot: Vec<_> = ranges().filter(|range| range.hot).collect();
        let density = |range: &RangeRate| range.pages_per_second / number(range.pages.len());
        hot.sort_by(|one, other| density(other).total_cmp(&density(one)));
        Self {
            pid,
            seconds: measured.elapsed.as_secs_f64(),
            ended_unix_ms: unix_ms(measured.ended.unwrap_or_else(Instant::now)),
            interval_ms: measured.interval.as_secs_f64() * 1e3,
            intervals: measured.intervals,
            cancelled: measured.cancelled,
            total: RatesReport::new(&measured.total, measured),
            blocks: layout
                .blocks()
                .zip(&measured.blocks)
                .map(|((block, _), rate)| BlockReport::new(&block.id, rate, measured))
                .collect(),
            hot_ranges: hot.into_iter().filter_map(range).collect(),
            map: map.then(|| ranges().filter_map(range).collect()),
            cost: CostReport::new(&measured.cost, measured),
            notes,
        }
    }
}

/// A time of the past by the clock that people use, in milliseconds.
fn unix_ms(at: Instant) -> u64 {
    let at = SystemTime::now().checked_sub(at.elapsed());
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

impl RatesReport {
    fn new(rates: &Rates, measured: &Measurement) -> Self {
        let interval = measured.interval.as_secs_f64() * 1e3;
        let working_set = |window: &Window| WorkingSetReport {
            window_ms: interval * f64::from(window.intervals),
            mean_window_ms: window.mean_length.as_secs_f64() * 1e3,
            windows: window.windows,
            mean_pages: window.mean,
            max_pages: window.max,
        };
        Self {
            bytes: rates.pages * PAGE_BYTES,
            measured_bytes: rates.measured_pages * PAGE_BYTES,
            pages_per_second: PerSecondReport::new(rates.pages_per_second, 1.0),
            bytes_per_second: PerSecondReport::new(rates.pages_per_second, number(PAGE_BYTES)),
            working_sets: rates.windows.iter().map(working_set).collect(),
        }
    }
}

impl PerSecondReport {
    fn new(pages: PagesPerSecond, unit: f64) -> Self {
        Self {
            mean: pages.mean * unit,
            median: pages.median * unit,
            max: pages.max * unit,
        }
    }
}

impl<'a> BlockReport<'a> {
    fn new(id: &'a str, block: &BlockRate, measured: &Measurement) -> Self {
        let rates = RatesReport::new(&block.rates, measured);
        Self { id, rates }
    }
}

impl<'a> RangeReport<'a> {
    fn new(layout: &'a RamLayout, range: &RangeRate) -> Option<Self> {
        let (block, pages) = layout.block(range.block)?;
        let offset = (range.pages.start().index() - pages.start().index()) * PAGE_BYTES;
        let mut mapped = block.guest.iter();
        let mapped = mapped.find(|part| (part.offset..part.offset + part.bytes).contains(&offset));
        Some(Self {
            block: &block.id,
            offset,
            bytes: range.pages.bytes(),
            guest_address: mapped.map(|part| part.gpa + (offset - part.offset)),
            pages_per_second: range.pages_per_second,
            different_pages: range.different,
            hot: range.hot,
        })
    }
}

impl CostReport {
    fn new(cost: &Cost, measured: &Measurement) -> Self {
        let seconds = measured.elapsed.as_secs_f64().max(1e-9);
        Self {
            mean_take_ms: cost.takes.as_secs_f64() * 1e3 / f64::from(measured.intervals.max(1)),
            max_take_ms: cost.longest_take.as_secs_f64() * 1e3,
            faults_per_second: number(cost.faults) / seconds,
            vcpu_share: cost.share,
            preparation_ms: cost.preparation.as_secs_f64() * 1e3,
        }
    }
}

/// Exact below 2^53.
#[allow(clippy::cast_precision_loss)]
fn number(number: u64) -> f64 {
    number as f64
}
