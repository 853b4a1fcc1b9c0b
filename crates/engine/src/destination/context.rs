//! What the receivers share: where received pages go, and what is counted and measured.

use std::sync::{Arc, Mutex, OnceLock};

use crate::destination::postcopy::installer::{Installer, SharedLatencies};
use crate::report::{Counters, Observer, RequestLatencies, SwitchoverSteps, Tracker};
use hikkoshi_memory::RamWriter;

/// What the receivers share. Pages go into guest memory, and from the switchover on through the
/// installer.
#[derive(Debug)]
pub(crate) struct ReceiveContext {
    /// `None` when all pages go through the installer.
    pub(crate) memory: Option<RamWriter>,
    pub(crate) installer: OnceLock<Arc<Installer>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tracker: Arc<Tracker>,
    /// One for each receiver.
    pub(crate) receiver_latencies: Mutex<Vec<Arc<SharedLatencies>>>,
    /// The steps of the switchover so far.
    pub(crate) steps: SwitchoverSteps,
}

impl ReceiveContext {
    /// Pages go to `memory` until there is an installer.
    pub(crate) fn new(memory: Option<RamWriter>) -> Arc<Self> {
        Arc::new(Self {
            memory,
            installer: OnceLock::new(),
            counters: Arc::default(),
            tracker: Arc::default(),
            receiver_latencies: Mutex::default(),
            steps: SwitchoverSteps::default(),
        })
    }

    /// What installs pages, if post-copy is prepared. Waits until all missing pages are known.
    pub(crate) fn installer(&self) -> Option<&Installer> {
        let installer = self.installer.get()?;
        installer.wait_until_missing_pages_are_known();
        Some(installer)
    }

    /// All receivers' records, merged.
    pub(crate) fn latencies(&self) -> RequestLatencies {
        let mut all = RequestLatencies::default();
        if let Ok(receivers) = self.receiver_latencies.lock() {
            for receiver in receivers.iter() {
                if let Ok(latencies) = receiver.lock() {
                    all.merge(&latencies);
                }
            }
        }
        all
    }

    /// Reports to `observer` how many bytes have arrived.
    pub(crate) fn report_progress(&self, observer: &dyn Observer) {
        let bytes = self.counters.bytes();
        let sum = bytes.precopy + bytes.urgent + bytes.background;
        self.tracker.report(observer, sum);
    }

    /// A record for one more receiver.
    pub(crate) fn add_latencies(&self) -> Arc<SharedLatencies> {
        let latencies = Arc::<SharedLatencies>::default();
        if let Ok(mut receivers) = self.receiver_latencies.lock() {
            receivers.push(Arc::clone(&latencies));
        }
        latencies
    }
}
