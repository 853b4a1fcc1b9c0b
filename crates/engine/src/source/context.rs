//! What all parts of one migration share.

use std::fmt;
use std::sync::Arc;

use hikkoshi_handover::{Journal, SourceRecord};
use hikkoshi_link::UrgentActivity;
use hikkoshi_linux::Cancel;
use hikkoshi_memory::RamFiles;

use crate::report::{Counters, Observer, Tracker};
use crate::source::error::SourceFailure;
use crate::source::options::SourceOptions;

/// Who watches over a migration from outside.
#[derive(Clone)]
pub struct Watch {
    /// Asks it to stop.
    pub cancel: Cancel,
    /// Is told how it goes.
    pub observer: Arc<dyn Observer>,
    /// Where it is written down how far it is. *Commit* is sent when
    /// [`SourceStage::Committed`] is recorded: from then on nobody may resume
    /// the guest at the source but by the rules of `docs/protocol.md`. When that
    /// cannot be recorded, nothing is committed.
    pub journal: Arc<dyn Journal<SourceRecord>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// What all parts of one migration share.
#[derive(Debug, Clone)]
pub(crate) struct MigrationContext {
    pub(crate) ram: Arc<RamFiles>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) progress: Arc<Tracker>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) cancel: Cancel,
    pub(crate) options: SourceOptions,
    /// Told by the thread that answers requests, heeded by the background links.
    pub(crate) urgency: UrgentActivity,
}

impl MigrationContext {
    /// Fails once somebody has cancelled.
    pub(crate) fn check(&self) -> Result<(), SourceFailure> {
        if self.cancel.is_cancelled() {
            Err(SourceFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}
