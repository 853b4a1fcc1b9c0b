//! The source's machine, and where its stages are written down.

use std::io;
use std::sync::Arc;

use hikkoshi_wire::MigrationId;

use hikkoshi_handover::{Journal, Source, SourceAction, SourceEvent, SourceRecord, SourceStage};

/// Says what to do next, with everything recorded that must be before it.
#[derive(Debug)]
pub(super) struct Keeper {
    machine: Source,
    record: SourceRecord,
    journal: Arc<dyn Journal<SourceRecord>>,
}

impl Keeper {
    /// In the stage that `record` tells.
    pub(super) fn new(record: SourceRecord, journal: Arc<dyn Journal<SourceRecord>>) -> Self {
        Self {
            machine: Source::new(record.stage),
            record,
            journal,
        }
    }

    /// Writes down where it is now.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.journal.record(&self.record)
    }

    /// It is over.
    pub(super) fn close(&self) {
        self.journal.close();
    }

    pub(super) fn stage(&self) -> SourceStage {
        self.machine.stage()
    }

    pub(super) fn id(&self) -> MigrationId {
        self.record.id
    }

    /// Takes note of `event`; what to do is told when it may be done.
    ///
    /// # Errors
    /// When the new stage could not be recorded: the stage is the old one, and
    /// nothing may be done.
    pub(super) fn on(&mut self, event: SourceEvent) -> io::Result<&'static [SourceAction]> {
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
