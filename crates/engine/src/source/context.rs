//! What all parts of one migration share.

use std::fmt;
use std::sync::Arc;

use hikkoshi_handover::{Journal, SourceRecord};
use hikkoshi_link::UrgentActivity;
use hikkoshi_linux::Cancel;
use hikkoshi_memory::GuestRam;

use crate::report::{Counters, Observer, Tracker};
use crate::source::error::SourceFailure;
use crate::source::options::SourceOptions;

/// How the caller controls and observes a migration.
#[derive(Clone)]
pub struct Watch {
    /// Cancels the migration.
    pub cancel: Cancel,
    /// Receives progress and notices.
    pub observer: Arc<dyn Observer>,
    /// Stores the record. *Commit* is sent only after
    /// [`SourceStage::Committed`](hikkoshi_handover::SourceStage::Committed) is
    /// recorded. From then on the guest may be resumed at the source only by the
    /// rules of `docs/protocol.md`. If the stage cannot be recorded, the source
    /// does not commit.
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
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) progress: Arc<Tracker>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) cancel: Cancel,
    pub(crate) options: SourceOptions,
    /// Set by the thread that answers requests. The background links yield to it.
    pub(crate) urgency: UrgentActivity,
}

impl MigrationContext {
    /// Fails after the migration was cancelled.
    pub(crate) fn check(&self) -> Result<(), SourceFailure> {
        if self.cancel.is_cancelled() {
            Err(SourceFailure::Cancelled)
        } else {
            Ok(())
        }
    }
}
