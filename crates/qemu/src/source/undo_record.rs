//! The record of the changes to a source, for undoing them.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::migration_settings::Settings;

/// The changes to a source. Another process can undo them, too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndoRecord {
    /// The original values of the settings that we changed.
    pub settings: Settings,
    /// `Some` if we paused the guest, or were about to: whether it ran before.
    pub stopped: Option<bool>,
    /// How many disks are being copied, or were about to be: their block jobs and nodes.
    pub copies: u16,
}

/// Passes changes of the record to a callback.
#[derive(Default)]
pub(crate) struct UndoRecorder(Option<WriteRecord>);

type WriteRecord = Box<dyn FnMut(&UndoRecord) -> io::Result<()> + Send>;

impl UndoRecorder {
    pub(crate) fn new(keep: impl FnMut(&UndoRecord) -> io::Result<()> + Send + 'static) -> Self {
        Self(Some(Box::new(keep)))
    }

    pub(crate) fn write(&mut self, record: &UndoRecord) -> io::Result<()> {
        match &mut self.0 {
            Some(keep) => keep(record),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for UndoRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UndoRecorder")
            .field(&self.0.is_some())
            .finish()
    }
}
