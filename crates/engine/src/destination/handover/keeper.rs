//! The destination's machine, and where its stages are written down.

use std::io;
use std::sync::Arc;

use hikkoshi_handover::{
    Destination, DestinationAction, DestinationEvent, DestinationRecord, DestinationStage, Journal,
};

/// Says what to do next, with everything recorded that must be before it.
#[derive(Debug)]
pub(crate) struct Keeper {
    machine: Destination,
    pub(crate) record: DestinationRecord,
    journal: Arc<dyn Journal<DestinationRecord>>,
}

impl Keeper {
    /// In the stage that `record` tells.
    pub(crate) fn new(
        record: DestinationRecord,
        journal: Arc<dyn Journal<DestinationRecord>>,
    ) -> Self {
        Self {
            machine: Destination::new(record.stage),
            record,
            journal,
        }
    }

    pub(crate) fn stage(&self) -> DestinationStage {
        self.machine.stage()
    }

    /// Takes note of `event`; what to do is told when it may be done.
    ///
    /// # Errors
    /// When the new stage could not be recorded: the stage is the old one, and
    /// nothing may be done.
    pub(crate) fn on(
        &mut self,
        event: DestinationEvent,
    ) -> io::Result<&'static [DestinationAction]> {
        let before = self.machine;
        let actions = self.machine.on(event);
        tracing::debug!(?event, from = ?before.stage(), to = ?self.stage(), ?actions, "custody");
        let [DestinationAction::Record(stage), rest @ ..] = actions else {
            return Ok(actions);
        };
        let record = DestinationRecord {
            stage: *stage,
            ..self.record.clone()
        };
        if let Err(error) = self.journal.record(&record) {
            self.machine = before;
            return Err(error);
        }
        self.record = record;
        Ok(rest)
    }

    /// The guest was made to run, and needs not be again.
    pub(crate) fn started(&mut self) -> io::Result<()> {
        self.record.started = true;
        self.journal.record(&self.record)
    }

    /// What is recorded is of no use to anybody any more.
    pub(crate) fn close(&self) {
        self.journal.close();
    }
}
