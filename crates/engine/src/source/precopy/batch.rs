//! The work of one batch: chunks of memory, handed out by an atomic cursor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hikkoshi_pages::PageRange;

use crate::source::error::SourceFailure;
use crate::source::precopy::range_log::RangeLog;

/// Work for all workers, in items that are handed out by an atomic cursor.
#[derive(Debug)]
pub(crate) struct Batch {
    work: Work,
    /// Whether it is the last one of its round.
    last: bool,
    /// The log in which pages are looked up that are sent, to count stale ones.
    stale: Option<Arc<RangeLog>>,
    /// The number of the next item.
    cursor: AtomicU64,
    failed: AtomicBool,
    /// The first failure. Later ones follow from it.
    failure: OnceLock<SourceFailure>,
}

/// What a batch consists of.
#[derive(Debug)]
pub(crate) enum Work {
    /// All of the guest's memory. The worker that sends a range takes its log.
    Log {
        log: Arc<RangeLog>,
        /// The first round sends everything that is not a hole in the RAM
        /// files: the destination began with nothing but holes.
        first: bool,
    },
    /// Pages whose log was taken, after which all device writes in progress have
    /// landed. A worker sends one list at a time.
    Taken(Vec<Vec<PageRange>>),
}

impl Batch {
    /// A batch that is a whole round.
    pub(crate) fn round(log: Arc<RangeLog>, first: bool) -> Self {
        let counted = Arc::clone(&log);
        Self::new(Work::Log { log, first }, true).of(&counted)
    }

    /// A part of a round; `last` if no other part follows.
    pub(crate) fn taken(chunks: Vec<Vec<PageRange>>, last: bool) -> Self {
        Self::new(Work::Taken(chunks), last)
    }

    /// The same batch, of pages that were taken from `log` while the guest runs.
    pub(crate) fn of(mut self, log: &Arc<RangeLog>) -> Self {
        self.stale = log.counts_stale().then(|| Arc::clone(log));
        self
    }

    fn new(work: Work, last: bool) -> Self {
        Self {
            work,
            last,
            stale: None,
            cursor: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// What the batch consists of.
    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// The log, if stale pages are counted.
    pub(crate) fn stale_log(&self) -> Option<&RangeLog> {
        self.stale.as_deref()
    }

    /// Whether it is the last one of its round.
    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    /// The number of an item that no other worker has; `None` after a failure. May
    /// be beyond the last item.
    pub(crate) fn next(&self) -> Option<u64> {
        // `Relaxed`: a worker's item does not depend on what another worker has
        // done.
        (!self.has_failed()).then(|| self.cursor.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Makes the workers skip the items that they have not begun.
    pub(crate) fn abandon(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Records `failure`, unless an earlier one is recorded, and abandons the batch.
    pub(crate) fn fail(&self, failure: SourceFailure) {
        let _ = self.failure.set(failure);
        self.abandon();
    }

    /// The first failure.
    pub(crate) fn into_failure(self) -> Option<SourceFailure> {
        self.failure.into_inner()
    }
}
