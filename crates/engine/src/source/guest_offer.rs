//! What the source tells of its guest before anything moves.

use hikkoshi_wire::{
    Capabilities, Domain, GuestDescription, GuestDisks, Machine, Processors, ToDestination,
};

use crate::guest::SourceGuest;
use crate::source::error::SourceFailure;

/// A guest, as it is offered to a destination, or asked about.
#[derive(Debug, Clone)]
pub struct GuestOffer<'a> {
    /// The machine as the destination must provide it.
    pub description: &'a GuestDescription,
    /// Its virtual processors.
    pub processors: Processors,
    /// Its devices.
    pub machine: Machine,
    /// What the destination's management daemon needs to create it.
    pub domain: Option<Domain>,
    /// Its disks.
    pub disks: GuestDisks,
}

impl<'a> GuestOffer<'a> {
    /// The offer of this guest.
    pub(crate) fn of(guest: &'a dyn SourceGuest) -> Self {
        Self {
            description: guest.describe(),
            processors: guest.processors(),
            machine: guest.machine(),
            domain: guest.domain(),
            disks: guest.disks(),
        }
    }

    /// The message about the disks, if there are any, to a destination with these capabilities.
    ///
    /// # Errors
    /// [`SourceFailure::DisksNotCompared`].
    pub(crate) fn disks_message(
        &self,
        agreed: Capabilities,
    ) -> Result<Option<ToDestination>, SourceFailure> {
        if self.disks.disks.is_empty() {
            return Ok(None);
        }
        if !agreed.contains(Capabilities::DISKS) {
            return Err(SourceFailure::DisksNotCompared);
        }
        let disks = self.disks.clone();
        Ok(Some(ToDestination::Disks { disks }))
    }

    /// The messages that come first, to a destination with these capabilities.
    pub(crate) fn first_messages(&self, agreed: Capabilities) -> Vec<ToDestination> {
        let mut messages = Vec::new();
        if let Some(domain) = &self.domain
            && agreed.contains(Capabilities::DOMAIN)
        {
            let domain = domain.clone();
            messages.push(ToDestination::Domain { domain });
        }
        if self.machine != Machine::default() && agreed.contains(Capabilities::MACHINE) {
            let machine = self.machine.clone();
            messages.push(ToDestination::Machine { machine });
        }
        messages
    }
}
