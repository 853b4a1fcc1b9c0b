//! The dirty log of the rounds, which is taken in ranges.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hikkoshi_dirty::{DirtyError, DirtyLog};
use hikkoshi_pages::{PageRange, RamLayout};

use crate::source::chunks::{self, CHUNK, chunk};
use crate::source::precopy::dirty_estimate::DirtyEstimate;

/// The dirty log, and an estimate of the pages that are in it. Shared by all threads that take it.
#[derive(Debug)]
pub(crate) struct RangeLog {
    log: Arc<dyn DirtyLog>,
    layout: RamLayout,
    /// How long it took to start the log: it records writes to some pages for longer than others.
    starting: Duration,
    started: Instant,
    estimate: Mutex<DirtyEstimate>,
}

impl RangeLog {
    /// For a log that was just started; `begun` is a time before that.
    pub(crate) fn new(log: Arc<dyn DirtyLog>, begun: Instant, layout: &RamLayout) -> Self {
        let number = usize::try_from(chunks::count(layout, CHUNK)).unwrap_or(usize::MAX);
        Self {
            log,
            layout: layout.clone(),
            starting: begun.elapsed(),
            started: Instant::now(),
            estimate: Mutex::new(DirtyEstimate::new(number)),
        }
    }

    /// The whole log.
    pub(crate) fn whole(&self) -> &dyn DirtyLog {
        &*self.log
    }

    /// The range with this number, from 0 on; `None` beyond the last one. May be empty.
    pub(crate) fn range(&self, number: u64) -> Option<PageRange> {
        chunk(&self.layout, CHUNK, number)
    }

    /// All memory from the range with this number on.
    pub(crate) fn from(&self, number: u64) -> PageRange {
        let all = self.layout.all();
        let start = self.range(number).map_or(all.end(), |range| range.start());
        PageRange::new(start, all.end())
    }

    /// The number of ranges.
    pub(crate) fn ranges(&self) -> u64 {
        chunks::count(&self.layout, CHUNK)
    }

    /// Whether the first round finds only pages that were written: see
    /// [`DirtyLog::starts_clean`].
    pub(crate) fn starts_clean(&self) -> bool {
        self.log.starts_clean()
    }

    /// Takes the log of the range with this number: see [`DirtyLog::take`]. Returns for how long
    /// the log had recorded writes to the range: since the take before. In the `first` round that
    /// is at most the time since the log was being started.
    pub(crate) fn take(
        &self,
        number: u64,
        first: bool,
        dirty: &mut dyn FnMut(PageRange),
    ) -> Result<Duration, DirtyError> {
        let range = self.range(number).unwrap_or(PageRange::EMPTY);
        let at = self.started.elapsed();
        let mut found = 0;
        self.log.take(range, &mut |run| {
            found += run.len();
            dirty(run);
        })?;
        let mut estimate = self.estimate.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = estimate.taken(
            usize::try_from(number).unwrap_or(usize::MAX),
            range.len(),
            found,
            at,
        );
        Ok(match first {
            true => recorded + self.starting,
            false => recorded,
        })
    }

    /// About how many pages are dirty at the end of a round. Does not read the log.
    pub(crate) fn estimate(&self) -> u64 {
        let mut estimate = self.estimate.lock().unwrap_or_else(PoisonError::into_inner);
        estimate.dirty(self.started.elapsed())
    }

    /// How many pages are dirty: reads the log of all memory.
    pub(crate) fn count(&self) -> Result<u64, DirtyError> {
        self.log.count(self.layout.all())
    }
}
