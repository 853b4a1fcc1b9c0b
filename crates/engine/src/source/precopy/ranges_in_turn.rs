//! Rounds for measurements: the log is taken in a number of ranges, one after another.
//!
//! Without this, each worker takes the log of a small range and sends it. Here all of them send the
//! pages of one range, and only then the log of the next one is taken. With one range the log is
//! taken as a whole.

use std::sync::Arc;

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::batch::Batch;
use crate::source::precopy::collector::Collector;
use crate::source::precopy::lists;
use crate::source::precopy::range_log::RangeLog;
use crate::source::precopy::workers::PrecopyWorkers;
use crate::source::unsent::UnsentPages;

/// Sends rounds of ranges in turn.
#[derive(Debug)]
pub(crate) struct RangesInTurn {
    shared: MigrationContext,
    log: Arc<RangeLog>,
    collector: Collector,
}

impl RangesInTurn {
    pub(crate) fn new(
        shared: &MigrationContext,
        log: &Arc<RangeLog>,
        unsent: &Arc<UnsentPages>,
    ) -> Self {
        Self {
            shared: shared.clone(),
            log: Arc::clone(log),
            collector: Collector::new(shared, unsent),
        }
    }

    /// One pass over all memory. Every link is empty when it returns.
    pub(crate) fn round(
        &mut self,
        workers: &PrecopyWorkers,
        first: bool,
    ) -> Result<(), SourceFailure> {
        self.collector.begin();
        let ranges = self.log.ranges();
        for number in 0..ranges {
            self.shared.check()?;
            let mut runs = Vec::new();
            self.collector
                .collect(&self.log, first, number, &mut runs)?;
            let last = number + 1 == ranges;
            workers.run(Batch::taken(lists(&runs), last).of(&self.log))?;
        }
        Ok(())
    }
}
