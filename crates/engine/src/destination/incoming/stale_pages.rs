//! Drops stale pages: those that the guest has overwritten at the source since they were sent.

use hikkoshi_wire::PageRanges;

use crate::destination::error::DestinationFailure;
use crate::destination::incoming::incoming_migration::IncomingMigration;
use crate::guest::DestinationGuest;

impl IncomingMigration<'_> {
    /// Drops pages that the guest has overwritten at the source since they were sent; they are sent
    /// again after the switchover.
    pub(super) fn discard(
        &mut self,
        guest: &dyn DestinationGuest,
        ranges: &PageRanges,
    ) -> Result<(), DestinationFailure> {
        let doing = "dropping stale pages";
        let Some(missing) = self.postcopy.missing() else {
            return Err(DestinationFailure::unexpected(doing, ranges));
        };
        let ram = guest.ram();
        let limits = self.session.limits();
        let ranges = ranges
            .within(&limits)
            .map_err(|error| DestinationFailure::unexpected(doing, &error.to_string()))?;
        for &range in ranges {
            // The source knows the host page sizes; a hole in half a huge page would drop nothing.
            if ram.layout().round_out(range) != range {
                return Err(DestinationFailure::unexpected(doing, &range));
            }
        }
        if let Some(memory) = &self.context.memory {
            if self.postcopy.is_registered() {
                // Files are looked at again (`drop_prefilled.rs`), and the guest may be paused.
                memory.drop_unchecked(ranges)?;
            } else {
                memory.drop_stale(ranges)?;
            }
        }
        for &range in ranges {
            missing.add(range);
        }
        Ok(())
    }
}
