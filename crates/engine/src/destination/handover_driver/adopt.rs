//! Taking over the userfaultfd that another engine left in the guest's process.

use std::sync::Arc;
use std::time::Instant;

use hikkoshi_memory::missing_pages;

use crate::destination::error::DestinationFailure;
use crate::destination::handover_driver::HandoverDriver;
use crate::destination::handover_driver::links::LinkState;
use crate::destination::postcopy::ActivePostcopy;
use crate::destination::postcopy::installer::Installer;
use crate::guest::DestinationGuest;

impl HandoverDriver<'_> {
    /// Finds out which pages are missing, and handles faults from now on. `last_sign`: when the
    /// engine before had its last sign of the source, if that is known.
    pub(crate) fn adopt_userfault(
        &mut self,
        guest: &mut dyn DestinationGuest,
        last_sign: Option<Instant>,
    ) -> Result<(), DestinationFailure> {
        let (userfault, hosts) = guest.take_userfault()?;
        let ram = Arc::clone(&self.ram);
        let background_links = self.handover.record().links;
        let latencies = Arc::clone(&self.context.live.latencies);
        let installer = Installer::new(
            Arc::clone(&userfault),
            ram,
            &hosts,
            background_links,
            latencies,
        )?;
        installer.copier.memory_pressure().wait_for_memory();
        // It is registered already, unless the other engine was killed while it did that.
        installer.copier.register()?;
        missing_pages(&self.ram, &userfault, &hosts, |range| {
            installer.missing.add(range);
        })?;
        tracing::info!(pages = installer.missing.count(), "pages are missing");
        let LinkState::Down(channel) = &self.links else {
            return Ok(());
        };
        let threads = self.options.fault_threads_for(guest.describe().cpus);
        ActivePostcopy::start(
            &mut self.postcopy,
            (installer, threads),
            None,
            &self.context,
            &channel.sender(),
            &self.options,
        )?;
        let Some(postcopy) = &self.postcopy else {
            return Ok(());
        };
        postcopy.begin(&self.context)?;
        let total = self.handover.record().history.missing_pages;
        let missing = self.missing_pages();
        self.context.tracker.resume_postcopy(missing, total);
        // The other engine has read the faults of the threads that wait. They fault again, so that
        // it is known from now on how long they wait, and for which pages.
        if let Some(last) = last_sign {
            postcopy.installer().requests.waited_since(last);
        }
        postcopy.installer().request_again()?;
        Ok(())
    }
}
