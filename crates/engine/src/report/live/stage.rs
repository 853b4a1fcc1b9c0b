//! The present stage of the handover, as it is recorded.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use hikkoshi_account::{Stage, SwitchoverStep};
use hikkoshi_handover::{DestinationRecord, DestinationStage, Journal, SourceRecord, SourceStage};

/// The stage that was recorded last.
#[derive(Debug)]
pub(super) struct Present(Mutex<Stage>);

impl Present {
    pub(super) fn new(stage: Stage) -> Self {
        Self(Mutex::new(stage))
    }

    pub(super) fn get(&self) -> Stage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

/// A journal that also notes the stage.
///
/// The handover drivers do not see every stage: the first one of an engine that resumes a migration
/// is that of its record, and a destination may end before it has a driver. All of them are
/// recorded.
#[derive(Debug)]
pub(crate) struct StageJournal<R> {
    journal: Arc<dyn Journal<R>>,
    present: Arc<Present>,
}

impl<R> StageJournal<R> {
    pub(super) fn new(journal: &Arc<dyn Journal<R>>, present: &Arc<Present>) -> Self {
        Self {
            journal: Arc::clone(journal),
            present: Arc::clone(present),
        }
    }
}

impl<R: Debug + HasStage> Journal<R> for StageJournal<R> {
    fn record(&self, record: &R) -> io::Result<()> {
        self.journal.record(record)?;
        self.present.set(record.stage());
        Ok(())
    }

    fn close(&self) {
        self.journal.close();
    }
}

/// A record of the handover.
pub(crate) trait HasStage {
    /// The stage in it.
    fn stage(&self) -> Stage;
}

impl HasStage for SourceRecord {
    fn stage(&self) -> Stage {
        Stage::Source(self.stage)
    }
}

impl HasStage for DestinationRecord {
    fn stage(&self) -> Stage {
        Stage::Destination(self.stage)
    }
}

/// The stage of the other side, as far as it follows from its messages.
pub(super) fn of_peer(stage: Stage, switchover: &[SwitchoverStep]) -> Stage {
    let is_ready = || switchover.iter().any(|s| s.step == "destination ready");
    match stage {
        Stage::Source(SourceStage::Owned) if !is_ready() => {
            Stage::Destination(DestinationStage::Receiving)
        }
        Stage::Source(SourceStage::Owned | SourceStage::Committed) => {
            Stage::Destination(DestinationStage::Ready)
        }
        Stage::Source(SourceStage::HandedOver) => Stage::Destination(DestinationStage::Running),
        Stage::Source(SourceStage::Done) => Stage::Destination(DestinationStage::Complete),
        Stage::Destination(DestinationStage::Running) => Stage::Source(SourceStage::Committed),
        Stage::Destination(DestinationStage::Complete) => Stage::Source(SourceStage::HandedOver),
        Stage::Destination(_) => Stage::Source(SourceStage::Owned),
    }
}
