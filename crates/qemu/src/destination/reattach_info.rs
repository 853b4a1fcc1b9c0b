//! What another program needs to know to reattach to a destination.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hikkoshi_linux::OomKillCount;
use serde::{Deserialize, Serialize};

use crate::identity::QemuIdentity;
use crate::migration_settings::Settings;
use crate::process::oom_kills;

/// What another program needs to know to reattach to a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestinationReattachInfo {
    /// The QEMU process and its guest's memory.
    pub identity: QemuIdentity,
    /// The original values of QEMU's changed settings.
    pub settings: Settings,
    /// The userfaultfd's descriptor number inside QEMU, if there is one.
    pub userfault: Option<i32>,
    /// The pipe through which the guest's device state reaches QEMU, if its owner uses one.
    pub pipe: Option<PathBuf>,
    /// How many processes the kernel had killed for lack of memory.
    pub oom_kills: Vec<OomKillCount>,
}

impl DestinationReattachInfo {
    /// Why a QEMU that has ended since then probably did so, if that can be seen; for people.
    pub fn why_ended(&self) -> Option<String> {
        oom_kills::since_counted(&self.oom_kills)
    }
}

/// Information that several threads read while it changes.
#[derive(Debug, Clone)]
pub struct SharedReattachInfo(Arc<Mutex<DestinationReattachInfo>>);

impl SharedReattachInfo {
    /// Starts with this information.
    pub fn new(info: DestinationReattachInfo) -> Self {
        Self(Arc::new(Mutex::new(info)))
    }

    /// The information, as of now.
    pub fn get(&self) -> DestinationReattachInfo {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut DestinationReattachInfo)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
