//! Post-copy while it runs: its threads, its links, and what is measured.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use crate::destination::context::ReceiveContext;
use crate::destination::error::DestinationFailure;
use crate::destination::options::DestinationOptions;
use crate::destination::postcopy::drop_prefilled::{self, Since};
use crate::destination::postcopy::fault_counters::{FaultCounters, FaultCounts, ThreadNames};
use crate::destination::postcopy::fault_thread;
use crate::destination::postcopy::installer::Installer;
use crate::destination::postcopy::request_sender::RequestSender;
use crate::destination::session::DestinationSessionEvent;
use crate::guest::DestinationGuest;
use crate::report::{Phase, RequestStatistics};
use error_reporter::Report;
use hikkoshi_link::{LinkReader, LinkWriter};

/// What post-copy needs, until it begins.
#[derive(Debug)]
pub(crate) struct PreparedPostcopy {
    pub(crate) installer: Installer,
    pub(crate) urgent: (LinkReader, LinkWriter),
    pub(crate) fault_threads: usize,
}

/// Faults are being handled.
#[derive(Debug)]
pub(crate) struct ActivePostcopy {
    installer: Arc<Installer>,
    request_sender: Arc<RequestSender>,
    threads: Vec<JoinHandle<()>>,
    fault_counters: Arc<FaultCounters>,
    names: ThreadNames,
    /// The counts when the device state was loaded.
    before_running: Option<FaultCounts>,
}

impl ActivePostcopy {
    /// From now on an access to a missing page faults. From [`begin`](Self::begin) on it is
    /// requested on the link `urgent`, or on the one that
    /// [`set_request_link`](Self::set_request_link) sets later. More pages may become missing until
    /// then.
    ///
    /// After a failure `slot` holds what was started, for the caller to stop it.
    pub(crate) fn start(
        slot: &mut Option<Self>,
        (installer, fault_threads): (Installer, usize),
        urgent: Option<LinkWriter>,
        context: &ReceiveContext,
        events: &SyncSender<DestinationSessionEvent>,
        options: &DestinationOptions,
    ) -> Result<(), DestinationFailure> {
        let installer = Arc::new(installer);
        // Set once, here: receivers install pages from now on instead of writing them.
        let _ = context.installer.set(Arc::clone(&installer));
        let weak = Arc::<Installer>::downgrade(&installer);
        context.live.set_missing(weak);
        let postcopy = slot.insert(Self {
            installer: Arc::clone(&installer),
            request_sender: Arc::new(RequestSender::new(fault_threads, fault_thread::BATCH_BYTES)),
            threads: Vec::new(),
            fault_counters: Arc::new(FaultCounters::new()),
            names: ThreadNames::default(),
            before_running: None,
        });
        // Before the first fault: requests without a link are dropped.
        postcopy.request_sender.attach(urgent);
        installer.copier.register()?;
        if let Some(memory) = &context.memory {
            // From now on no thread of the guest's process can fill a page unnoticed. Pages that
            // were filled before are dropped.
            drop_prefilled::drop_prefilled(memory, &installer, Since::Start)?;
        }
        let threads = &mut postcopy.threads;
        for thread in fault_thread::start(
            &installer,
            &postcopy.request_sender,
            &postcopy.fault_counters,
            installer.stop(),
            events,
            options,
            fault_threads,
        ) {
            threads.push(thread?);
        }
        Ok(())
    }

    /// All missing pages are known: faults are answered, and pages installed, from now on.
    pub(crate) fn begin(&self, context: &ReceiveContext) -> Result<(), DestinationFailure> {
        if let Some(memory) = &context.memory {
            drop_prefilled::drop_prefilled(memory, &self.installer, Since::Registration)?;
        }
        let missing = self.installer.missing.count();
        context.tracker.begin(Phase::Postcopy, 0, missing);
        let installer = Arc::<Installer>::downgrade(&self.installer);
        context.live.note_missing(installer);
        self.installer.set_missing_pages_known();
        Ok(())
    }

    /// Requests are sent on this link from now on; without a link, faults wait.
    pub(crate) fn set_request_link(&self, urgent: Option<LinkWriter>) {
        self.request_sender.attach(urgent);
    }

    pub(crate) fn installer(&self) -> &Arc<Installer> {
        &self.installer
    }

    /// The device state is loaded: faults from now on may be the guest's.
    pub(crate) fn set_device_state_loaded(&mut self) {
        self.before_running = Some(self.fault_counters.faulted_so_far());
    }

    /// Looks up the names of threads that fault, while they live.
    pub(crate) fn name_threads(&mut self, guest: &dyn DestinationGuest) {
        self.names.update(&self.fault_counters, guest);
    }

    /// What was measured so far.
    pub(crate) fn requests(&self) -> RequestStatistics {
        let latencies = &self.installer.latencies;
        RequestStatistics {
            request_latency_us: latencies.total(),
            request_stages_us: latencies.stages(),
            unmeasured_requests: self.installer.requests.unmeasured(),
            faults: self.names.account(&self.fault_counters.faulted_so_far()),
            requests_under_way: None,
            faults_before_running: self
                .before_running
                .as_ref()
                .map(|faulted| self.names.account(faulted)),
        }
    }

    /// Stops handling faults. Threads that fault keep waiting.
    pub(crate) fn stop(&self) {
        self.installer.stop().stop();
        // Lets the threads that wait for this end.
        self.installer.set_missing_pages_known();
    }

    /// Stops, and unregisters the guest's memory: when no page is missing, or when the guest will
    /// never run here.
    pub(crate) fn release_memory(&self) {
        self.stop();
        if let Err(error) = self.installer.copier.unregister() {
            tracing::warn!(error = %Report::new(&error), "unregistering the guest's memory");
        }
    }

    /// Waits for the threads. They must have been stopped, and their links closed.
    pub(crate) fn join(&mut self) {
        for thread in self.threads.drain(..) {
            // A panic was reported by the panic hook; there is nothing to add.
            let _ = thread.join();
        }
        let pages = self.installer.filled_before();
        tracing::debug!(pages, "missing pages that were present before they arrived");
    }
}
