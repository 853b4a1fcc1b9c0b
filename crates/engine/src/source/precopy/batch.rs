//! The work of one batch: chunks of memory, handed out by an atomic cursor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hikkoshi_pages::PageRange;

use crate::source::control::SourceControl;
use crate::source::error::SourceFailure;
use crate::source::precopy::range_log::RangeLog;

/// Work for all workers, in items that are handed out by an atomic cursor.
#[derive(Debug)]
pub(crate) struct Batch {
    work: Work,
    /// Whether it is the last one of its round.
    last: bool,
    /// The number of the next item.
    cursor: AtomicU64,
    failed: AtomicBool,
    /// The first failure. Later ones follow from it.
    failure: OnceLock<SourceFailure>,
    /// Ends the batch early, when post-copy is requested.
    control: Option<SourceControl>,
    /// Pages that the workers have not sent then, although their log was taken.
    left: Mutex<Vec<PageRange>>,
}

/// What was not sent of a batch that was ended early; nothing of others.
#[derive(Debug, Default)]
pub(crate) struct BatchRest {
    /// Pages whose log was taken.
    pub(crate) pages: Vec<PageRange>,
    /// The number of the first item that no worker has begun. May be beyond the last item.
    pub(crate) next: u64,
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
        Self::new(Work::Log { log, first }, true)
    }

    /// A part of a round; `last` if no other part follows.
    pub(crate) fn taken(chunks: Vec<Vec<PageRange>>, last: bool) -> Self {
        Self::new(Work::Taken(chunks), last)
    }

    fn new(work: Work, last: bool) -> Self {
        Self {
            work,
            last,
            cursor: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            control: None,
            left: Mutex::default(),
        }
    }

    /// This batch, which ends early when `control` is asked for post-copy.
    pub(crate) fn until(mut self, control: &SourceControl) -> Self {
        self.control = Some(control.clone());
        self
    }

    /// What the batch consists of.
    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// Whether it is the last one of its round.
    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    /// The number of an item that no other worker has; `None` after a failure, or if the batch ends
    /// early. May be beyond the last item.
    pub(crate) fn next(&self) -> Option<u64> {
        // `Relaxed`: a worker's item does not depend on what another worker has
        // done.
        (!self.has_failed() && !self.ends_early())
            .then(|| self.cursor.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether post-copy was requested: what is not sent stays.
    pub(crate) fn ends_early(&self) -> bool {
        let control = self.control.as_ref();
        control.is_some_and(SourceControl::ends_precopy)
    }

    /// Does not send these pages, whose log was taken: the batch ends early.
    pub(crate) fn leave(&self, pages: PageRange) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(pages);
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

    /// What was not sent.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn into_rest(self) -> Result<BatchRest, SourceFailure> {
        if let Some(failure) = self.failure.into_inner() {
            return Err(failure);
        }
        let next = self.cursor.into_inner();
        let mut pages = self
            .left
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        if let Work::Taken(lists) = self.work {
            let begun = usize::try_from(next).unwrap_or(usize::MAX);
            pages.extend(lists.into_iter().skip(begun).flatten());
        }
        Ok(BatchRest { pages, next })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::source::options::SourceOptions;
    use hikkoshi_handover::SourceStage;
    use hikkoshi_linux::CancelFlag;
    use hikkoshi_pages::Page;

    fn range(start: u64) -> PageRange {
        PageRange::from_len(Page::new(start), 10)
    }

    #[test]
    fn a_batch_that_ends_early_keeps_what_was_taken() {
        let control = SourceControl::new();
        let (options, cancel) = (SourceOptions::default(), CancelFlag::new());
        control.begin(&options, SourceStage::Owned, &cancel);
        control.begin_precopy();
        let lists = (0..4).map(|number| vec![range(number * 10)]).collect();
        let batch = Batch::taken(lists, true).until(&control);
        assert_eq!((batch.next(), batch.next()), (Some(0), Some(1)));
        control.switch().unwrap();
        assert!(batch.ends_early());
        assert_eq!(batch.next(), None);
        batch.leave(range(10));
        let rest = batch.into_rest().unwrap();
        assert_eq!(rest.pages, [range(10), range(20), range(30)]);
        assert_eq!(rest.next, 2);
    }

    #[test]
    fn a_batch_that_was_sent_leaves_nothing() {
        let batch = Batch::taken(vec![vec![range(0)]], true);
        while batch.next().is_some_and(|number| number < 1) {}
        assert_eq!(batch.into_rest().unwrap().pages, []);
    }
}
