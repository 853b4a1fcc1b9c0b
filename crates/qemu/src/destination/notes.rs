//! Notes.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::identity::QemuIdentity;
use crate::settings::Settings;

/// What another program must know to go on with a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DestinationNotes {
    /// Where it is.
    #[serde(rename = "place")]
    pub identity: QemuIdentity,
    /// QEMU's settings that were changed, as they were.
    pub settings: Settings,
    /// The userfaultfd's number inside QEMU, if one was taken.
    pub userfault: Option<i32>,
}

/// The notes as of now, wherever they are looked at from.
#[derive(Debug, Clone)]
pub struct SharedNotes(Arc<Mutex<DestinationNotes>>);

impl SharedNotes {
    /// These, to begin with.
    pub fn new(notes: DestinationNotes) -> Self {
        Self(Arc::new(Mutex::new(notes)))
    }

    /// The notes.
    pub fn get(&self) -> DestinationNotes {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut DestinationNotes)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
