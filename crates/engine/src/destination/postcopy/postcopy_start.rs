//! Post-copy until the guest could run here: prepared by the offer, registered while the guest
//! still runs at the source, begun when all missing pages are known.

use std::sync::mpsc::SyncSender;

use hikkoshi_link::LinkReader;

use crate::destination::context::ReceiveContext;
use crate::destination::error::DestinationFailure;
use crate::destination::options::DestinationOptions;
use crate::destination::postcopy::missing_pages::MissingPages;
use crate::destination::postcopy::{ActivePostcopy, PreparedPostcopy};
use crate::destination::session::DestinationSessionEvent;

/// Post-copy that may follow.
#[derive(Debug)]
pub(crate) struct PostcopyStart {
    /// What it needs, until memory is registered.
    prepared: Option<PreparedPostcopy>,
    /// The urgent link, from then until pages may arrive there.
    urgent: Option<LinkReader>,
    /// What handles faults from then on.
    active: Option<ActivePostcopy>,
}

impl PostcopyStart {
    /// `None`: post-copy does not follow.
    pub(crate) fn new(prepared: Option<PreparedPostcopy>) -> Self {
        Self {
            prepared,
            urgent: None,
            active: None,
        }
    }

    /// Whether it may follow, and memory is not registered yet.
    pub(crate) fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Whether memory is registered.
    pub(crate) fn is_registered(&self) -> bool {
        self.active.is_some()
    }

    /// What the source still has to send, if post-copy may follow.
    pub(crate) fn missing(&self) -> Option<&MissingPages> {
        let active = self.active.as_ref();
        let active = active.map(|postcopy| &postcopy.installer().missing);
        let prepared = self.prepared.as_ref();
        active.or(prepared.map(|prepared| &prepared.installer.missing))
    }

    /// Registers memory, if it is not registered yet: an access to a missing page waits from now
    /// on.
    pub(crate) fn register(
        &mut self,
        context: &ReceiveContext,
        events: &SyncSender<DestinationSessionEvent>,
        options: &DestinationOptions,
    ) -> Result<(), DestinationFailure> {
        let Some(prepared) = self.prepared.take() else {
            return Ok(());
        };
        let (reader, writer) = prepared.urgent;
        self.urgent = Some(reader);
        ActivePostcopy::start(
            &mut self.active,
            (prepared.installer, prepared.fault_threads),
            Some(writer),
            context,
            events,
            options,
        )
    }

    /// All missing pages are known, and the source answers requests. Returns the link on which the
    /// answers arrive.
    pub(crate) fn begin(
        &mut self,
        context: &ReceiveContext,
    ) -> Result<Option<LinkReader>, DestinationFailure> {
        if let Some(postcopy) = &self.active {
            postcopy.begin(context)?;
        }
        Ok(self.urgent.take())
    }

    /// The device state is loaded. Waits until the host has memory for pages that arrived
    /// meanwhile.
    pub(crate) fn set_device_state_loaded(&mut self) {
        if let Some(postcopy) = &mut self.active {
            postcopy.set_device_state_loaded();
            let copier = &postcopy.installer().copier;
            copier.memory_pressure().wait_for_memory();
        }
    }

    /// Unregisters the guest's memory: it will never run here.
    pub(crate) fn release_memory(&self) {
        if let Some(postcopy) = &self.active {
            postcopy.release_memory();
        }
    }

    /// Waits for the threads, after [`release_memory`](Self::release_memory).
    pub(crate) fn join(&mut self) {
        if let Some(postcopy) = &mut self.active {
            postcopy.join();
        }
    }

    /// Post-copy, if it has begun.
    pub(crate) fn into_active(self) -> Option<ActivePostcopy> {
        self.active
    }
}
