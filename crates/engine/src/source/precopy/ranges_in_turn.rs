//! Rounds for measurements: the log is taken in a number of ranges, one after another.
//!
//! Without this, each worker takes the log of a small range and sends it. Here all of them send the
//! pages of one range, and only then the log of the next one is taken. With one range the log is
//! taken as a whole.
//!
//! To be deleted with [`LogRanges`](crate::source::LogRanges) and `--log-ranges` as soon as the
//! published experiments have used it for the last time.

use std::sync::Arc;

use crate::source::context::MigrationContext;
use crate::source::error::SourceFailure;
use crate::source::precopy::batch::Batch;
use crate::source::precopy::collector::Collector;
use crate::source::precopy::lists::lists;
use crate::source::precopy::range_log::RangeLog;
use crate::source::precopy::round_rest::RoundRest;
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

    /// One pass over all memory, unless it ends early. Every link is empty when it returns. Returns
    /// what was not sent.
    pub(crate) fn round(
        &mut self,
        workers: &PrecopyWorkers,
        first: bool,
    ) -> Result<RoundRest, SourceFailure> {
        self.collector.begin();
        let ranges = self.log.ranges();
        for number in 0..ranges {
            self.shared.check()?;
            let mut runs = Vec::new();
            self.collector
                .collect(&self.log, first, number, &mut runs)?;
            let control = &self.shared.control;
            let last = number + 1 == ranges || control.ends_precopy();
            let batch = Batch::taken(lists(&runs), last).counting_stale(&self.log);
            let rest = workers.run(batch.until(control))?;
            if control.ends_precopy() {
                if !last {
                    workers.empty_links()?;
                }
                return Ok(RoundRest {
                    pages: rest.pages,
                    unvisited: self.log.from(number + 1),
                });
            }
        }
        Ok(RoundRest::default())
    }
}
