//! The journal of an engine, kept in memory for the next engine.

use std::fmt;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_handover::Journal;

/// The journal of an engine, kept in memory for the next engine.
pub(crate) struct Records<R> {
    last: Mutex<Option<R>>,
    /// Called before each record.
    before: Mutex<Box<BeforeRecord<R>>>,
    closed: AtomicBool,
}

type BeforeRecord<R> = dyn FnMut(&R) -> io::Result<()> + Send;

impl<R> Default for Records<R> {
    fn default() -> Self {
        Self {
            last: Mutex::new(None),
            before: Mutex::new(Box::new(|_| Ok(()))),
            closed: AtomicBool::new(false),
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for Records<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Records").field(&self.last).finish()
    }
}

impl<R: Clone> Records<R> {
    pub(crate) fn before(&self, hook: impl FnMut(&R) -> io::Result<()> + Send + 'static) {
        *self.before.lock().unwrap() = Box::new(hook);
    }

    pub(crate) fn last(&self) -> Option<R> {
        self.last.lock().unwrap().clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl<R: Clone + fmt::Debug + Send> Journal<R> for Records<R> {
    fn record(&self, record: &R) -> io::Result<()> {
        assert!(
            !self.is_closed(),
            "{record:?} recorded after the journal was closed"
        );
        (self.before.lock().unwrap())(record)?;
        *self.last.lock().unwrap() = Some(record.clone());
        Ok(())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}
