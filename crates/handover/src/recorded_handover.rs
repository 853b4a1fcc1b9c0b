//! A machine whose stage is recorded before anything that depends on it is done.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::destination::{Destination, DestinationAction, DestinationEvent};
use crate::record::{DestinationRecord, History, Journal, SourceRecord};
use crate::source::{Source, SourceAction, SourceEvent};
use crate::stage::{DestinationStage, SourceStage};

/// One side's state machine, as [`RecordedHandover`] drives it.
pub trait StateMachine: Copy + fmt::Debug {
    /// The machine's state.
    type Stage: Copy + fmt::Debug + 'static;
    /// What the machine handles.
    type Event: Copy + fmt::Debug;
    /// What the machine returns.
    type Action: fmt::Debug + 'static;
    /// What the journal stores.
    type Record: Clone + fmt::Debug;

    /// A machine in the stage of `record`.
    fn new(record: &Self::Record) -> Self;
    /// The stage that the machine is in.
    fn stage(&self) -> Self::Stage;
    /// Handles `event` and returns what to do, in order.
    fn on(&mut self, event: Self::Event) -> &'static [Self::Action];
    /// The stage that `action` asks to record, if it is such an action.
    fn stage_to_record(action: &Self::Action) -> Option<Self::Stage>;
    /// Puts a stage into a record.
    fn set_stage(record: &mut Self::Record, stage: Self::Stage);
    /// What is reported of the migration.
    fn history(record: &mut Self::Record) -> &mut History;
}

/// A machine, its record, and the journal that stores the record.
#[derive(Debug)]
pub struct RecordedHandover<M: StateMachine> {
    machine: M,
    record: M::Record,
    journal: Arc<dyn Journal<M::Record>>,
}

/// The source's machine with its record.
pub type RecordedSource = RecordedHandover<Source>;

/// The destination's machine with its record.
pub type RecordedDestination = RecordedHandover<Destination>;

impl<M: StateMachine> RecordedHandover<M> {
    /// A machine in the stage of `record`. Nothing is written to `journal` yet.
    #[must_use]
    pub fn new(record: M::Record, journal: Arc<dyn Journal<M::Record>>) -> Self {
        Self {
            machine: M::new(&record),
            record,
            journal,
        }
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> &M::Record {
        &self.record
    }

    /// The stage that the machine is in.
    #[must_use]
    pub fn stage(&self) -> M::Stage {
        self.machine.stage()
    }

    /// What is reported of the migration. A change is written with the next record.
    pub fn history(&mut self) -> &mut History {
        M::history(&mut self.record)
    }

    /// Writes the record as it is now.
    ///
    /// # Errors
    /// When the journal cannot store it.
    pub fn write(&self) -> io::Result<()> {
        self.journal.record(&self.record)
    }

    /// Handles `event`, records the new stage if there is one, and returns what to do.
    ///
    /// # Errors
    /// When the new stage cannot be recorded. The machine is then in the old stage, and no action
    /// may be performed.
    pub fn on(&mut self, event: M::Event) -> io::Result<&'static [M::Action]> {
        let before = self.machine;
        let actions = self.machine.on(event);
        tracing::debug!(?event, from = ?before.stage(), to = ?self.stage(), ?actions, "handover");
        let Some((first, rest)) = actions.split_first() else {
            return Ok(actions);
        };
        let Some(stage) = M::stage_to_record(first) else {
            return Ok(actions);
        };
        let mut record = self.record.clone();
        M::set_stage(&mut record, stage);
        if let Err(error) = self.journal.record(&record) {
            self.machine = before;
            return Err(error);
        }
        self.record = record;
        Ok(rest)
    }

    /// Removes the record from the journal: neither side needs it any more.
    pub fn close(&self) {
        self.journal.close();
    }
}

impl RecordedHandover<Destination> {
    /// Records that the guest was resumed, so that no later engine resumes it again.
    ///
    /// # Errors
    /// When the journal cannot store it.
    pub fn set_started(&mut self) -> io::Result<()> {
        self.record.started = true;
        self.write()
    }
}

impl StateMachine for Source {
    type Stage = SourceStage;
    type Event = SourceEvent;
    type Action = SourceAction;
    type Record = SourceRecord;

    fn new(record: &SourceRecord) -> Self {
        Self::new(record.stage)
    }

    fn stage(&self) -> SourceStage {
        self.stage()
    }

    fn on(&mut self, event: SourceEvent) -> &'static [SourceAction] {
        self.on(event)
    }

    fn stage_to_record(action: &SourceAction) -> Option<SourceStage> {
        match action {
            SourceAction::Record(stage) => Some(*stage),
            _ => None,
        }
    }

    fn set_stage(record: &mut SourceRecord, stage: SourceStage) {
        record.stage = stage;
    }

    fn history(record: &mut SourceRecord) -> &mut History {
        &mut record.history
    }
}

impl StateMachine for Destination {
    type Stage = DestinationStage;
    type Event = DestinationEvent;
    type Action = DestinationAction;
    type Record = DestinationRecord;

    fn new(record: &DestinationRecord) -> Self {
        Self::new(record.stage)
    }

    fn stage(&self) -> DestinationStage {
        self.stage()
    }

    fn on(&mut self, event: DestinationEvent) -> &'static [DestinationAction] {
        self.on(event)
    }

    fn stage_to_record(action: &DestinationAction) -> Option<DestinationStage> {
        match action {
            DestinationAction::Record(stage) => Some(*stage),
            _ => None,
        }
    }

    fn set_stage(record: &mut DestinationRecord, stage: DestinationStage) {
        record.stage = stage;
    }

    fn history(record: &mut DestinationRecord) -> &mut History {
        &mut record.history
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;

    use hikkoshi_wire::{MigrationId, Mode};

    use super::*;

    /// A journal that keeps the last record, or fails.
    #[derive(Debug, Default)]
    struct Memory {
        kept: Mutex<Option<SourceRecord>>,
        full: bool,
    }

    impl Journal<SourceRecord> for Memory {
        fn record(&self, record: &SourceRecord) -> io::Result<()> {
            if self.full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *self.kept.lock().unwrap() = Some(record.clone());
            Ok(())
        }
    }

    fn recorded(journal: &Arc<Memory>) -> RecordedSource {
        let record = SourceRecord {
            id: MigrationId::from_bytes([7; 16]),
            stage: SourceStage::ALL[0],
            mode: Mode::Hybrid,
            history: History::begin(),
        };
        RecordedHandover::new(record, Arc::clone(journal) as Arc<_>)
    }

    #[test]
    fn a_stage_is_recorded_before_its_actions_are_returned() {
        let journal = Arc::new(Memory::default());
        let mut recorded = recorded(&journal);
        recorded.history().missing_pages = Some(5);
        let actions = recorded.on(SourceEvent::Ready).unwrap();
        assert_eq!(actions, [SourceAction::SendCommit]);
        assert_eq!(recorded.stage(), SourceStage::Committed);
        let kept = journal.kept.lock().unwrap().clone().unwrap();
        assert_eq!(&kept, recorded.record());
        assert_eq!(kept.stage, SourceStage::Committed);
        assert_eq!(kept.history.missing_pages, Some(5));
    }

    #[test]
    fn a_record_that_fails_leaves_the_old_stage_and_no_action() {
        let journal = Arc::new(Memory {
            full: true,
            ..Memory::default()
        });
        let mut recorded = recorded(&journal);
        let error = recorded.on(SourceEvent::Ready).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(recorded.stage(), SourceStage::ALL[0]);
        assert_eq!(recorded.record().stage, SourceStage::ALL[0]);
    }
}
