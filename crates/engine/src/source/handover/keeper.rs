//! The source's machine, and where its stages are written down.

use std::io;
use std::sync::Arc;

use hikkoshi_wire::MigrationId;

use hikkoshi_handover::{Journal, Source, SourceAction, SourceEvent, SourceRecord, SourceStage};

/// Says what to do next, with everything recorded that must be before it.
#[derive(Debug)]
pub(crate) struct Keeper {
    machine: Source,
    record: SourceRecord,
    journal: Arc<dyn Journal<SourceRecord>>,
}

impl Keeper {
    /// In the stage that `record` tells.
    pub(crate) fn new(record: SourceRecord, journal: Arc<dyn Journal<SourceRecord>>) -> Self {
        Self {
            machine: Source::new(record.stage),
            record,
            journal,
        }
    }

    /// Writes down where it is now.
    pub(crate) fn begin(&self) -> io::Result<()> {
        self.journal.record(&self.record)
    }

    /// It is over.
    pub(crate) fn close(&self) {
        self.journal.close();
    }

    pub(crate) fn stage(&self) -> SourceStage {
        self.machine.stage()
    }

    pub(crate) fn id(&self) -> MigrationId {
        self.record.id
    }

    /// Takes note of `event`; what to do is told when it may be done.
    ///
    /// # Errors
    /// When the new stage could not be recorded: the stage is the old one, and
    /// nothing may be done.
    pub(crate) fn on(&mut self, event: SourceEvent) -> io::Result<&'static [SourceAction]> {
        let before = self.machine;
        let actions = self.machine.on(event);
        tracing::debug!(?event, from = ?before.stage(), to = ?self.stage(), ?actions, "custody");
        let [SourceAction::Record(stage), rest @ ..] = actions else {
            return Ok(actions);
        };
        let record = SourceRecord {
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
}
