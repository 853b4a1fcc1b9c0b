//! Limits how long a source may be silent.

use std::time::{Duration, Instant};

use crate::destination::context::ReceiveContext;
use crate::destination::error::DestinationFailure;
use hikkoshi_link::LinkError;

/// How long the source has been silent. Before *ready* the destination may give the migration up at
/// any time, and does so after a time limit.
#[derive(Debug)]
pub(super) struct SilenceTimer {
    limit: Duration,
    at: Instant,
    received: u64,
}

impl SilenceTimer {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            at: Instant::now(),
            received: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        self.at = Instant::now();
    }

    /// Also counts what has arrived on the other links.
    pub(super) fn check(
        &mut self,
        context: &ReceiveContext,
        doing: &'static str,
    ) -> Result<(), DestinationFailure> {
        let received = context.counters.received();
        if received != self.received {
            self.received = received;
            self.reset();
        }
        if self.at.elapsed() > self.limit {
            return Err(DestinationFailure::link(doing)(LinkError::TooSlow));
        }
        Ok(())
    }
}
