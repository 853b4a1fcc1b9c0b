//! Reports that it is too late to cancel: *commit* was sent, and the destination has not answered.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use error_reporter::Report;
use hikkoshi_engine::report::Live;
use hikkoshi_engine::{CancelFlag, Observer};
use hikkoshi_handover::{Journal, SourceRecord, SourceStage};

use crate::journal::SourceJournal;

/// How often the cancel flag is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const TOO_LATE: &str = "too late to cancel: the destination was asked to run the guest and has not \
                        answered; waiting for its answer";

/// Watches the cancel flag from *commit* until the destination's answer.
#[derive(Debug)]
pub(super) struct LateCancelNotice {
    cancel: CancelFlag,
    observer: Arc<dyn Observer>,
    /// The destination has answered, or the migration is over.
    ended: Arc<AtomicBool>,
}

impl LateCancelNotice {
    /// For a migration that `cancel` cancels and whose reports go to `observer`.
    pub(super) fn new(cancel: CancelFlag, observer: Arc<dyn Observer>) -> Self {
        Self {
            cancel,
            observer,
            ended: Arc::default(),
        }
    }

    /// The observer for the engine. A notice of the engine shows that the destination has answered,
    /// or that the link was lost.
    pub(super) fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(AnswerObserver {
            observer: Arc::clone(&self.observer),
            ended: Arc::clone(&self.ended),
        })
    }

    /// Ends the watch.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Starts the watch: *commit* is about to be sent.
    pub(super) fn begin(&self) {
        // Earlier reports are not about the answer.
        self.ended.store(false, Ordering::Release);
        let (cancel, ended) = (self.cancel.clone(), Arc::clone(&self.ended));
        let observer = Arc::clone(&self.observer);
        let started = thread::Builder::new()
            .name("late-cancel".into())
            .spawn(move || {
                while !ended.load(Ordering::Acquire) {
                    if cancel.is_cancelled() {
                        // Checked again: a signal after the answer gets no notice.
                        if !ended.load(Ordering::Acquire) {
                            observer.notice(TOO_LATE);
                        }
                        return;
                    }
                    thread::sleep(POLL_INTERVAL);
                }
            });
        if let Err(error) = started {
            // The migration continues without the notice.
            tracing::warn!(error = %Report::new(&error), "starting the thread that reports a late cancellation");
        }
    }
}

impl Drop for LateCancelNotice {
    fn drop(&mut self) {
        self.end();
    }
}

/// Passes all reports on.
#[derive(Debug)]
struct AnswerObserver {
    observer: Arc<dyn Observer>,
    ended: Arc<AtomicBool>,
}

impl Observer for AnswerObserver {
    fn begin(&self, live: &Arc<Live>) {
        self.observer.begin(live);
    }

    fn notice(&self, text: &str) {
        self.ended.store(true, Ordering::Release);
        self.observer.notice(text);
    }
}

/// The source's journal; starts the watch when *commit* is recorded.
#[derive(Debug)]
pub(super) struct CommitJournal {
    pub journal: Arc<SourceJournal>,
    pub late_cancel: Arc<LateCancelNotice>,
}

impl Journal<SourceRecord> for CommitJournal {
    fn record(&self, record: &SourceRecord) -> io::Result<()> {
        self.journal.record(record)?;
        match record.stage {
            SourceStage::Committed => self.late_cancel.begin(),
            // The destination has answered.
            _ => self.late_cancel.end(),
        }
        Ok(())
    }

    fn close(&self) {
        self.journal.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[derive(Debug)]
    struct Notices(Sender<String>);

    impl Observer for Notices {
        fn begin(&self, _: &Arc<Live>) {}
        fn notice(&self, text: &str) {
            self.0.send(text.to_owned()).unwrap();
        }
    }

    fn late_cancel() -> (LateCancelNotice, CancelFlag, Receiver<String>) {
        let (sender, notices) = channel();
        let cancel = CancelFlag::new();
        let late_cancel = LateCancelNotice::new(cancel.clone(), Arc::new(Notices(sender)));
        (late_cancel, cancel, notices)
    }

    #[test]
    fn a_late_cancellation_is_reported_once() {
        let (late_cancel, cancel, notices) = late_cancel();
        late_cancel.observer().notice("a round was long");
        assert_eq!(notices.recv().unwrap(), "a round was long");
        late_cancel.begin();
        cancel.cancel();
        assert_eq!(notices.recv().unwrap(), TOO_LATE);
        drop(late_cancel);
        // No thread is left that could report more.
        assert!(notices.recv().is_err());
    }

    #[test]
    fn a_cancellation_after_the_answer_is_not_reported_here() {
        let (late_cancel, cancel, notices) = late_cancel();
        late_cancel.begin();
        late_cancel.observer().notice("it runs there");
        cancel.cancel();
        drop(late_cancel);
        assert_eq!(notices.iter().collect::<Vec<_>>(), ["it runs there"]);
    }
}
