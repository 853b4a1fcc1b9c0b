//! The map of the guest's memory, from the counts of its cells.

use std::time::Duration;

use hikkoshi_account::{GuestAt, Map, Stage};
use hikkoshi_engine::report::{CellCounts, MemoryMap, Snapshot};

/// The first take of a cell says how often it is written if the log had recorded for so long: over
/// less time, a few writes make a high rate.
const LEAST: Duration = Duration::from_millis(100);

/// … and for so many times as long afterwards. The log of the first pages is taken soon after it
/// was started, and that of the last ones a whole round later. What is expected of the whole time
/// by the first ones is wrong by a factor of four at most then: the square root of the ratio.
const AS_LONG: u32 = 15;

/// What is remembered of each cell between two states.
#[derive(Debug, Default)]
pub(super) struct Cells {
    cells: Vec<Tracked>,
}

/// The dirty log of one cell.
#[derive(Debug, Clone, Copy, Default)]
struct Tracked {
    /// The counts at the end of the last whole pass.
    counts: CellCounts,
    /// When that was.
    at: Duration,
    /// Whole passes so far.
    passes: u64,
    /// Dirty pages that the last whole pass has found, and how long the log had recorded them.
    found: u64,
    recorded: Duration,
}

/// What is known of the guest's writes at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Written {
    /// Pages that the guest dirties per second, if that is known of nearly all of its memory.
    pub(super) rate: Option<f64>,
    /// … if the rest of it were like the part of which that is known, which is at least a quarter.
    /// It may not be.
    pub(super) rate_if_alike: Option<f64>,
    /// Pages that are dirty now, if the rate is known, among those whose log was taken.
    pub(super) dirty: f64,
}

impl Cells {
    /// The map now, and what is known of the guest's writes.
    pub(super) fn map(&mut self, map: &MemoryMap, now: &Snapshot) -> (Map, Written) {
        let cells = (0..map.cells()).map(|cell| (map.pages_of(cell), map.cell(cell)));
        let (mut shown, written) = self.map_of(cells, now);
        if !now.waiting.is_empty() {
            shown.waiting = vec![0; map.cells()];
            for page in &now.waiting {
                if let Some(waiting) = shown.waiting.get_mut(map.cell_of(*page)) {
                    *waiting += 1;
                }
            }
        }
        (shown, written)
    }

    /// The map of these cells, without what is requested: the pages of each, and its counts.
    fn map_of(
        &mut self,
        cells: impl ExactSizeIterator<Item = (u64, CellCounts)>,
        now: &Snapshot,
    ) -> (Map, Written) {
        self.cells.resize(cells.len(), Tracked::default());
        let is_source = matches!(now.state.stage, Stage::Source(_));
        // Once the guest is paused, what is not sent is missing.
        let has_log = is_source && now.state.guest_at == GuestAt::Source;
        let mut shown = Map::default();
        let mut sums = Sums::default();
        for (tracked, (pages, counts)) in self.cells.iter_mut().zip(cells) {
            // The last page may have arrived while the map was made.
            let missing = match now.state.missing_pages {
                Some(0) => 0,
                _ => counts.missing,
            };
            // At the destination, what has arrived in pre-copy may be missing again, or have
            // arrived once more.
            let here = match is_source || now.state.missing_pages.is_none() {
                true => pages,
                false => pages.saturating_sub(missing + counts.urgent + counts.background),
            };
            shown.sent.push(here.min(counts.copied));
            shown.missing.push(missing);
            shown.by_request.push(counts.urgent);
            shown.background.push(counts.background);
            if has_log {
                tracked.update(now.at, pages, counts);
                let (rate, dirty) = sums.add(tracked, now.at, pages);
                shown.dirty.push(dirty);
                shown.dirty_per_second.push(rate);
            }
        }
        for list in [
            &mut shown.sent,
            &mut shown.missing,
            &mut shown.by_request,
            &mut shown.background,
            &mut shown.dirty,
            &mut shown.dirty_per_second,
        ] {
            if list.iter().all(|&number| number == 0) {
                list.clear();
            }
        }
        shown.rated_pages = sums.rated;
        (shown, sums.written())
    }
}

/// Sums over all cells.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// All pages, those whose log was taken, and those whose rate is known.
    pages: u64,
    taken: u64,
    rated: u64,
    /// Of those whose rate is known.
    rate: f64,
    dirty: u64,
}

impl Sums {
    /// Adds a cell. Returns its rate, and the pages of it that are dirty; zeros if they are not
    /// known.
    fn add(&mut self, cell: &Tracked, now: Duration, pages: u64) -> (u64, u64) {
        self.pages += pages;
        if cell.passes > 0 {
            self.taken += pages;
        }
        if !cell.is_known(now) {
            return (0, 0);
        }
        let (rate, dirty) = (cell.rate(now, pages), cell.dirty(now, pages));
        self.rated += pages;
        self.rate += rate;
        self.dirty += dirty;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let whole = rate.round() as u64;
        (whole, dirty)
    }

    /// What is known of the guest as a whole. A sum of a few cells would not be its rate.
    #[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
    fn written(self) -> Written {
        if self.rated == 0 || self.rated < self.pages / 4 {
            return Written::default();
        }
        let (pages, rated) = (self.pages as f64, self.rated as f64);
        let rate_if_alike = Some(self.rate * pages / rated);
        if !Map::is_rated(self.rated, self.pages) {
            return Written {
                rate_if_alike,
                ..Written::default()
            };
        }
        Written {
            rate: rate_if_alike,
            rate_if_alike,
            dirty: self.dirty as f64 * (self.taken as f64 / rated),
        }
    }
}

impl Tracked {
    /// Notes a pass over the whole cell.
    fn update(&mut self, now: Duration, pages: u64, counts: CellCounts) {
        let taken = counts.taken.saturating_sub(self.counts.taken);
        if pages == 0 || taken < pages {
            return;
        }
        // Of several passes, or of a part of one more: the mean.
        let found = counts.dirty.saturating_sub(self.counts.dirty);
        let found = u128::from(found) * u128::from(pages) / u128::from(taken);
        let recorded = counts.recorded_us.saturating_sub(self.counts.recorded_us);
        *self = Self {
            counts,
            at: now,
            passes: self.passes.saturating_add(taken / pages),
            found: u64::try_from(found).unwrap_or(u64::MAX).min(pages),
            recorded: Duration::from_micros(recorded / taken),
        };
    }

    fn is_known(&self, now: Duration) -> bool {
        match self.passes {
            0 => false,
            1 => self.recorded >= LEAST && self.since(now) <= self.recorded * AS_LONG,
            _ => true,
        }
    }

    /// The time since the last whole pass.
    fn since(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }

    /// Pages that the guest dirties per second. After the first take, that is of the time since the
    /// log was started, which is the same for all cells.
    fn rate(&self, now: Duration, pages: u64) -> f64 {
        let time = match self.passes {
            1 => self.recorded + self.since(now),
            _ => self.recorded,
        };
        self.expected(time, pages) / time.as_secs_f64().max(1e-6)
    }

    /// Pages that are dirty now.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn dirty(&self, now: Duration, pages: u64) -> u64 {
        self.expected(self.since(now), pages) as u64
    }

    /// How many different pages the guest writes in this time. It writes to some of them again, to
    /// others not: between both bounds, as the engine's own estimate before it has measured that
    /// (`docs/decisions/0027-estimate-what-is-dirty.md`).
    #[allow(clippy::cast_precision_loss)] // Page counts below 2^53.
    fn expected(&self, time: Duration, pages: u64) -> f64 {
        let times = time.as_secs_f64() / self.recorded.as_secs_f64().max(1e-6);
        (self.found as f64 * times.sqrt()).min(pages as f64)
    }
}

#[cfg(test)]
mod tests;
