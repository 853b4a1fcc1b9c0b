//! Takes a dirty log at an interval: [`measure()`].

use std::error::Error;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_dirty::DirtyError;
use hikkoshi_linux::CancelFlag;
use hikkoshi_pages::{PageRange, RamLayout};

use crate::estimate::float;
use crate::measurement::{Cost, Measurement};
use crate::partial_log::PartialLog;
use crate::recorder::Recorder;
use crate::windows::MAX_INTERVALS;

/// What a page fault of the log is taken to cost the vCPU of an emulated guest: about. Measured by
/// `make bench ARGS="--only dirty-rate"`, with all memory in the log: 1.2 to 1.7 µs.
pub const FAULT_COST: Duration = Duration::from_nanos(1500);

/// What a page fault of the log is taken to cost the vCPU of a guest under KVM, which maps the page
/// again, too: 8.2 to 9.7 µs with KVM that is virtualized in software.
pub const KVM_FAULT_COST: Duration = Duration::from_nanos(9000);

/// What a take of a range costs beside its pages: about, by `PAGEMAP_SCAN` (0.5 µs if nothing is
/// dirty, 3 µs otherwise).
const RANGE_COST: Duration = Duration::from_micros(1);

/// What a clean page costs a take, by `PAGEMAP_SCAN` (measured: 0.2 to 0.5 ms for 200 MiB).
const SCAN_COST: Duration = Duration::from_nanos(4);

/// How many samples are tried before the measurement.
const MAX_TRIALS: u32 = 5;

/// A call of the log takes at most 1 GiB, which limits the list of what it reports.
const TAKE_PAGES: u64 = 1 << 18;

/// How long a wait does not look at the cancel flag.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// How a guest is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    interval: Duration,
    intervals: u32,
    max_cost: f64,
    fault_cost: Duration,
    seed: u64,
}

/// The options contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionsError {
    /// The interval is 0.
    NoInterval,
    /// The measurement is shorter than one interval.
    TooShort,
    /// There would be more than [`MAX_INTERVALS`] intervals.
    TooLong,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterval => write!(f, "the interval must not be 0"),
            Self::TooShort => write!(f, "the measurement must not be shorter than one interval"),
            Self::TooLong => write!(
                f,
                "the measurement has more than {MAX_INTERVALS} intervals: measure for less time, or \
                 use a longer interval"
            ),
        }
    }
}

impl Error for OptionsError {}

/// The log failed: the guest has ended, or its memory was remapped.
#[derive(Debug)]
pub enum MeasureError {
    /// Memory could not be tracked.
    Track(Box<dyn Error + Send + Sync>),
    /// The log could not be read.
    Take(DirtyError),
}

impl fmt::Display for MeasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("measuring the writes of a guest")
    }
}

impl Error for MeasureError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(match self {
            Self::Track(error) => &**error,
            Self::Take(error) => error,
        })
    }
}

impl From<DirtyError> for MeasureError {
    fn from(error: DirtyError) -> Self {
        Self::Take(error)
    }
}

impl Options {
    /// The part of one vCPU's time that measuring may cost, by default.
    pub const DEFAULT_MAX_COST: f64 = 0.02;

    /// Measures for `duration`, which is rounded to whole intervals.
    ///
    /// # Errors
    ///
    /// [`OptionsError`] if there is no interval, or if there are too many.
    pub fn new(duration: Duration, interval: Duration) -> Result<Self, OptionsError> {
        let micros = interval.as_micros();
        if micros == 0 {
            return Err(OptionsError::NoInterval);
        }
        if duration < interval {
            return Err(OptionsError::TooShort);
        }
        let intervals = (duration.as_micros() + micros / 2) / micros;
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX);
        if intervals > MAX_INTERVALS {
            return Err(OptionsError::TooLong);
        }
        Ok(Self {
            interval,
            intervals,
            max_cost: Self::DEFAULT_MAX_COST,
            fault_cost: FAULT_COST,
            seed: 0,
        })
    }

    /// If takes of all memory cost more than this part of the interval, with the page faults that
    /// follow from them, a sample is measured. From 1 on, all memory is measured, whatever it
    /// costs.
    #[must_use]
    pub fn max_cost(self, part: f64) -> Self {
        Self {
            max_cost: part,
            ..self
        }
    }

    /// What a page fault costs the guest: [`FAULT_COST`], unless this is called.
    #[must_use]
    pub fn fault_cost(self, fault_cost: Duration) -> Self {
        Self { fault_cost, ..self }
    }

    /// The number that chooses the sample.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The budget of an interval; `None`: no limit.
    fn budget(&self) -> Option<Duration> {
        (self.max_cost < 1.0).then(|| self.interval.mul_f64(self.max_cost.max(1e-6)))
    }
}

/// Measures the memory of `log`, which tracks nothing yet. `layout` is that of the log: all of a
/// guest's memory, or some of its blocks.
///
/// If `cancel` is set, it returns what was measured so far.
///
/// # Errors
///
/// See [`MeasureError`].
pub fn measure(
    log: &dyn PartialLog,
    layout: &RamLayout,
    options: &Options,
    cancel: &CancelFlag,
) -> Result<Measurement, MeasureError> {
    let began = Instant::now();
    let mut run = Run {
        log,
        recorder: Recorder::new(layout, options.interval, options.intervals, options.seed),
        sample: Vec::new(),
        dirty: Vec::new(),
        interval: options.interval,
        fault_cost: options.fault_cost,
        cancel,
    };
    run.sample = run.recorder.sample();
    run.choose_sample(options.budget())?;
    let mut cost = Cost::default();
    let mut last = run.take(None)?.at;
    cost.preparation = began.elapsed();
    let started = last;
    let mut next = last;
    let mut exceeded = 0;
    while run.recorder.intervals() < options.intervals {
        next += options.interval;
        // After a take that was very late: no short intervals that make up for it.
        next = next.max(last + options.interval / 2);
        if !run.wait_until(next) {
            break;
        }
        let take = run.interval(last)?;
        last = take.at;
        cost.takes += take.duration;
        cost.longest_take = cost.longest_take.max(take.duration);
        cost.faults += take.pages;
        // Twice, because the machine may have been busy once.
        exceeded = match options.budget() {
            Some(budget) if take.cost(options.fault_cost) > budget.mul_f64(1.5) => exceeded + 1,
            _ => 0,
        };
        if exceeded == 2 {
            exceeded = 0;
            if let Some(budget) = options.budget() {
                let dirty = run.extrapolated(take.pages);
                let next = run.recorder.level().saturating_add(1);
                run.set_level(run.cheapest_level(next, dirty, budget));
            }
        }
    }
    let measured = last.duration_since(started).as_secs_f64().max(1e-9);
    let all = cost_of(cost.takes, cost.faults, options.fault_cost);
    cost.share = all.as_secs_f64() / measured;
    let cancelled = run.recorder.intervals() < options.intervals;
    Ok(Measurement {
        ended: Some(last),
        cost,
        cancelled,
        ..run.recorder.finish()
    })
}

/// A take of the whole sample.
#[derive(Debug, Clone, Copy)]
struct Take {
    /// When it began.
    at: Instant,
    duration: Duration,
    pages: u64,
}

impl Take {
    fn cost(&self, fault_cost: Duration) -> Duration {
        cost_of(self.duration, self.pages, fault_cost)
    }
}

fn cost_of(takes: Duration, faults: u64, fault_cost: Duration) -> Duration {
    let nanos = fault_cost.as_nanos().saturating_mul(u128::from(faults));
    takes.saturating_add(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

struct Run<'a> {
    log: &'a dyn PartialLog,
    recorder: Recorder,
    sample: Vec<PageRange>,
    /// What the last call of the log has reported.
    dirty: Vec<PageRange>,
    interval: Duration,
    fault_cost: Duration,
    cancel: &'a CancelFlag,
}

impl Run<'_> {
    /// Chooses the largest sample that the budget of an interval is enough for, and tracks it.
    ///
    /// The first sample is so small that it does not cost more even if the guest writes to all of
    /// it. What it finds in an interval says how large a sample may be.
    fn choose_sample(&mut self, budget: Option<Duration>) -> Result<(), MeasureError> {
        let Some(budget) = budget else {
            return self.track();
        };
        let (all, _) = self.recorder.sample_size(0);
        let mut level = self.cheapest_level(0, float(all), budget);
        for _ in 0..MAX_TRIALS {
            self.set_level(level);
            self.track()?;
            if !self.wait_until(Instant::now() + self.interval) {
                return Ok(());
            }
            let take = self.take(None)?;
            let next = self.cheapest_level(0, self.extrapolated(take.pages), budget);
            let exceeded = take.cost(self.fault_cost) > budget;
            if next >= level && !exceeded {
                return Ok(());
            }
            level = match exceeded {
                true => next.max(level.saturating_add(1)),
                false => next,
            };
        }
        self.set_level(level);
        self.track()
    }

    /// The lowest level from `lowest` on that the budget of an interval is enough for, if the guest
    /// dirties so many pages of all memory in it.
    fn cheapest_level(&self, lowest: u8, dirty: f64, budget: Duration) -> u8 {
        let cost = |level: u8| {
            let (pages, ranges) = self.recorder.sample_size(level);
            let part = float(pages) / float(self.recorder.sample_size(0).0).max(1.0);
            SCAN_COST.mul_f64(float(pages))
                + RANGE_COST.mul_f64(float(ranges))
                + self.fault_cost.mul_f64(dirty * part)
        };
        let mut levels = lowest..self.recorder.max_level();
        levels
            .find(|level| cost(*level) <= budget)
            .unwrap_or(self.recorder.max_level())
    }

    /// So many dirty pages of the sample as dirty pages of all memory: the upper end of the range
    /// in which the number may be (two standard deviations of a Poisson distribution).
    fn extrapolated(&self, pages: u64) -> f64 {
        let (sampled, _) = self.recorder.sample_size(self.recorder.level());
        let (all, _) = self.recorder.sample_size(0);
        let most = float(pages) + 2.0 * float(pages).sqrt() + 1.0;
        most * float(all) / float(sampled).max(1.0)
    }

    /// Tracks the sample.
    fn track(&self) -> Result<(), MeasureError> {
        for range in &self.sample {
            for part in range.chunks(TAKE_PAGES) {
                self.log.track(part).map_err(MeasureError::Track)?;
            }
        }
        Ok(())
    }

    /// Whether the level has changed.
    fn set_level(&mut self, level: u8) -> bool {
        let changed = self.recorder.set_level(level);
        if changed {
            self.sample = self.recorder.sample();
        }
        changed
    }

    /// An interval ends now that began at `last`.
    fn interval(&mut self, last: Instant) -> Result<Take, MeasureError> {
        let mut take = self.take(Some(last))?;
        take.pages = self.recorder.reported();
        Ok(take)
    }

    /// Takes the sample. `last`: records it as the interval that began then.
    fn take(&mut self, last: Option<Instant>) -> Result<Take, MeasureError> {
        let at = Instant::now();
        let (mut duration, mut pages) = (Duration::ZERO, 0);
        if last.is_some() {
            self.recorder.begin_interval();
        }
        let parts = self
            .sample
            .iter()
            .flat_map(|range| range.chunks(TAKE_PAGES));
        for part in parts {
            // Recorded after the call, which the guest may wait for.
            self.dirty.clear();
            let began = Instant::now();
            self.log.take(part, &mut |run| self.dirty.push(run))?;
            duration += began.elapsed();
            for run in &self.dirty {
                pages += run.len();
                if last.is_some() {
                    self.recorder.dirty(*run);
                }
            }
        }
        if let Some(last) = last {
            self.recorder.end_interval(at.duration_since(last));
        }
        Ok(Take {
            at,
            duration,
            pages,
        })
    }

    /// Waits. Returns whether it was not cancelled.
    fn wait_until(&self, time: Instant) -> bool {
        loop {
            if self.cancel.is_cancelled() {
                return false;
            }
            let left = time.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(CANCEL_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let second = Duration::from_secs(1);
        let new = |duration, interval| Options::new(duration, interval).map(|it| it.intervals);
        assert_eq!(new(second, Duration::ZERO), Err(OptionsError::NoInterval));
        assert_eq!(new(second / 2, second), Err(OptionsError::TooShort));
        assert_eq!(new(second * 65_536, second), Err(OptionsError::TooLong));
        assert_eq!(new(second * 65_535, second), Ok(65_535));
        assert_eq!(new(second, Duration::from_millis(300)), Ok(3));
    }
}
