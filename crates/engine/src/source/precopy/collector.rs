//! Determines which pages of a range pre-copy sends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hikkoshi_pages::PageRange;

use crate::report::{Cell, Counters};
use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::range_log::RangeLog;
use crate::source::unsent::UnsentPages;

/// Takes the dirty log of one range after another. Belongs to one thread.
#[derive(Debug)]
pub(crate) struct Collector {
    shared: MigrationContext,
    /// Counts how often pages are written.
    unsent: Arc<UnsentPages>,
    /// The last run of data that was found in the RAM files.
    data: PageRange,
}

impl Collector {
    pub(crate) fn new(shared: &MigrationContext, unsent: &Arc<UnsentPages>) -> Self {
        Self {
            shared: shared.clone(),
            unsent: Arc::clone(unsent),
            data: PageRange::EMPTY,
        }
    }

    /// A new round begins.
    pub(crate) fn begin(&mut self) {
        // Data found in an earlier round may be a hole now (a balloon), and only the
        // first round looks for data.
        self.data = PageRange::EMPTY;
    }

    /// Takes the log of the range with this number and appends the pages to send to `runs`: the
    /// dirty pages, or in the first round all pages that the RAM files hold data for, and all
    /// others if the destination asks for marks. Returns whether there is such a range.
    pub(crate) fn collect(
        &mut self,
        log: &RangeLog,
        first: bool,
        number: u64,
        runs: &mut Vec<PageRange>,
    ) -> Result<bool, SourceFailure> {
        let Some(range) = log.range(number) else {
            return Ok(false);
        };
        // What the map has are writes, from which it computes rates.
        let are_writes = !first || log.starts_clean();
        let recorded = log.take(number, first, &mut |run| {
            self.unsent.count_write(run);
            if are_writes {
                self.shared.map.add(Cell::Dirty, run);
            }
            if !first {
                runs.push(run);
            }
        })?;
        if are_writes {
            self.shared.map.add_taken(range, recorded);
        }
        if first {
            let before = runs.len();
            if self.shared.marks_holes.load(Ordering::Relaxed) {
                runs.push(range);
            } else {
                self.find_data(range, runs)?;
            }
            let data: u64 = runs.iter().skip(before).map(|run| run.len()).sum();
            Counters::add(&self.shared.counters.zero, range.len() - data);
            self.count_holes(range, runs.get(before..).unwrap_or_default());
            self.shared.progress.done(range.len() - data);
        }
        Ok(true)
    }

    /// Counts the parts of `range` between `data`: the destination has them.
    fn count_holes(&self, range: PageRange, data: &[PageRange]) {
        let mut from = range.start();
        let end = PageRange::new(range.end(), range.end());
        for run in data.iter().chain([&end]) {
            let hole = PageRange::new(from, run.start());
            self.shared.map.add(Cell::Copied, hole);
            from = run.end();
        }
    }

    /// Appends the parts of `range` that the RAM files hold data for.
    ///
    /// The dirty log was taken before, so a hole that is written later is in the
    /// log. Therefore holes are searched again in every range, but data found once
    /// may be treated as data later.
    fn find_data(
        &mut self,
        range: PageRange,
        runs: &mut Vec<PageRange>,
    ) -> Result<(), SourceFailure> {
        let mut rest = range;
        while !rest.is_empty() {
            if !self.data.contains(rest.start()) {
                match self.shared.ram.data_run(rest)? {
                    Some(run) => self.data = run,
                    None => return Ok(()),
                }
            }
            let data = self.data.intersect(rest);
            runs.push(data);
            rest = PageRange::new(data.end(), rest.end());
        }
        Ok(())
    }
}
