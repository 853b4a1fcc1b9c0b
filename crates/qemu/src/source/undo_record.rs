//! The record of what has to be undone at a source.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// What was done to a source. Can be written down and passed on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UndoRecord {
    /// The settings that we changed, as they were.
    pub settings: Settings,
    /// Whether we stopped the guest, or were about to, and if so: whether it
    /// ran then.
    pub stopped: Option<bool>,
}

/// Who is told of changes to the record.
#[derive(Default)]
pub(crate) struct UndoRecorder(Option<Keep>);

type Keep = Box<dyn FnMut(&UndoRecord) -> io::Result<()> + Send>;

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
        f.debug_tuple("Journal").field(&self.0.is_some()).finish()
    }
}
