//! What another program needs to know to reattach to a destination.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::identity::QemuIdentity;
use crate::migration_settings::Settings;

/// What another program needs to know to reattach to a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DestinationNotes {
    /// The QEMU process and its guest's memory.
    #[serde(rename = "place")]
    pub identity: QemuIdentity,
    /// The original values of QEMU's changed settings.
    pub settings: Settings,
    /// The userfaultfd's descriptor number inside QEMU, if there is one.
    pub userfault: Option<i32>,
}

/// Notes that several threads read while they change.
#[derive(Debug, Clone)]
pub struct SharedNotes(Arc<Mutex<DestinationNotes>>);

impl SharedNotes {
    /// Starts with these notes.
    pub fn new(notes: DestinationNotes) -> Self {
        Self(Arc::new(Mutex::new(notes)))
    }

    /// The notes, as of now.
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
