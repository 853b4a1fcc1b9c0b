//! What the parts of a migration share: what it was given, where received pages go, and what is
//! counted and measured.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};

use crate::destination::options::DestinationOptions;
use crate::destination::postcopy::installer::Installer;
use crate::destination::receive_control::ReceiveControl;
use crate::report::{Counters, Live, MemoryMap, SwitchoverSteps, Tracker};
use hikkoshi_link::AcceptedLink;
use hikkoshi_memory::RamWriter;

/// What the engine's user has given to a migration, and where its connections arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DestinationRun<'a> {
    pub(crate) options: &'a DestinationOptions,
    pub(crate) control: &'a ReceiveControl,
    /// New connections.
    pub(crate) incoming: &'a Receiver<AcceptedLink>,
}

/// What the receivers share. Pages go into guest memory, and from the switchover on through the
/// installer.
#[derive(Debug)]
pub(crate) struct ReceiveContext {
    /// `None` when all pages go through the installer.
    pub(crate) memory: Option<RamWriter>,
    pub(crate) installer: OnceLock<Arc<Installer>>,
    /// *Commit* has arrived.
    committed: OnceLock<()>,
    /// What an observer reads; the next four are parts of it.
    pub(crate) live: Arc<Live>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tracker: Arc<Tracker>,
    pub(crate) map: Arc<MemoryMap>,
    /// The steps of the switchover so far.
    pub(crate) steps: Arc<SwitchoverSteps>,
}

impl ReceiveContext {
    /// Pages go to `memory` until there is an installer.
    pub(crate) fn new(memory: Option<RamWriter>, live: Arc<Live>) -> Arc<Self> {
        Arc::new(Self {
            memory,
            installer: OnceLock::new(),
            committed: OnceLock::new(),
            counters: Arc::clone(&live.counters),
            tracker: Arc::clone(&live.tracker),
            map: Arc::clone(&live.map),
            steps: Arc::clone(&live.steps),
            live,
        })
    }

    /// *Commit* has arrived.
    pub(crate) fn set_committed(&self) {
        let _ = self.committed.set(());
    }

    /// Whether the source waits for nothing any more that holds the guest up. A migration that was
    /// resumed, whose pages all go through the installer, was committed before.
    pub(crate) fn is_committed(&self) -> bool {
        self.memory.is_none() || self.committed.get().is_some()
    }

    /// What installs pages, if post-copy is prepared. Waits until all missing pages are known.
    pub(crate) fn installer(&self) -> Option<&Installer> {
        let installer = self.installer.get()?;
        installer.wait_until_missing_pages_are_known();
        Some(installer)
    }
}
