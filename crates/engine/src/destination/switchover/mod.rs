//! The switchover at the destination: from the source's *Switch*, with which its guest is paused
//! and everything but missing pages is here, to *ready*.

mod load;

use std::sync::Arc;

use crate::destination::error::DestinationFailure;
use crate::destination::incoming::SwitchMessage;
use crate::destination::incoming::incoming_migration::IncomingMigration;
use crate::destination::page_receiver;
use crate::guest::DestinationGuest;

impl IncomingMigration<'_> {
    /// Everything up to *ready*: the guest could run here then.
    pub(crate) fn prepare_switchover(
        &mut self,
        guest: &mut dyn DestinationGuest,
        switch: &SwitchMessage,
        device_state: Vec<u8>,
    ) -> Result<(), DestinationFailure> {
        if !self.disks.is_empty() {
            // The machine must not share them with its server when it loads the guest.
            guest.copied_disks()?.end()?;
            self.disks.clear();
            self.context.steps.done("disks complete");
        }
        if switch.postcopy {
            self.begin_postcopy()?;
        } else {
            self.clear_what_was_not_sent()?;
            self.end_installing();
        }
        self.context.steps.done("faults are answered");
        self.load(guest, device_state)?;
        self.context.steps.done("device state loaded");
        self.check()?;
        self.postcopy.set_device_state_loaded();
        Ok(())
    }

    /// Receives missing pages from now on. They are known, and the source answers requests.
    fn begin_postcopy(&mut self) -> Result<(), DestinationFailure> {
        self.register()?;
        if let Some(reader) = self.postcopy.begin(&self.context)? {
            let (context, events) = (Arc::clone(&self.context), self.session.events());
            let receiver = page_receiver::start_urgent(context, reader, events, self.run.options)?;
            self.receivers.push(receiver);
        }
        Ok(())
    }
}
