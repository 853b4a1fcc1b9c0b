//! The present stage of the handover, as it is recorded.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use hikkoshi_handover::{DestinationRecord, DestinationStage, Journal, SourceRecord, SourceStage};

use super::Stage;
use crate::report::SwitchoverStep;

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

/// A journal that notes the stage.
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

impl<R> Journal<R> for StageJournal<R>
where
    R: Debug,
    for<'a> Stage: From<&'a R>,
{
    fn record(&self, record: &R) -> io::Result<()> {
        self.journal.record(record)?;
        self.present.set(record.into());
        Ok(())
    }

    fn close(&self) {
        self.journal.close();
    }
}

impl From<&SourceRecord> for Stage {
    fn from(record: &SourceRecord) -> Self {
        Self::Source(record.stage)
    }
}

impl From<&DestinationRecord> for Stage {
    fn from(record: &DestinationRecord) -> Self {
        Self::Destination(record.stage)
    }
}

impl Stage {
    /// The stage of the other side, as far as it follows from its messages.
    pub(super) fn of_peer(self, switchover: &[SwitchoverStep]) -> Self {
        let is_ready = || switchover.iter().any(|s| s.step == "destination ready");
        match self {
            Self::Source(SourceStage::Owned) if !is_ready() => {
                Self::Destination(DestinationStage::Receiving)
            }
            Self::Source(SourceStage::Owned | SourceStage::Committed) => {
                Self::Destination(DestinationStage::Ready)
            }
            Self::Source(SourceStage::HandedOver) => Self::Destination(DestinationStage::Running),
            Self::Source(SourceStage::Done) => Self::Destination(DestinationStage::Complete),
            Self::Destination(DestinationStage::Running) => Self::Source(SourceStage::Committed),
            Self::Destination(DestinationStage::Complete) => Self::Source(SourceStage::HandedOver),
            Self::Destination(_) => Self::Source(SourceStage::Owned),
        }
    }
}
