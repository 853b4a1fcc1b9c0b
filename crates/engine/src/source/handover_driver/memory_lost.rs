//! The guest's process has ended at the source after *Commit*, and with it private memory that
//! holds pages which the destination needs.
//!
//! No other process has these pages, so neither side can complete the guest: reconnecting and
//! resuming would not help. Files that the process had mapped are still open here, and do not lead
//! to this.

use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_handover::{Outcome, SourceStage};
use hikkoshi_link::TICK;
use hikkoshi_memory::MemoryLost;

use crate::source::error::{MigrateError, SourceFailure};
use crate::source::handover_driver::HandoverDriver;

/// How long the process may take to end after it has lost its memory.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

impl HandoverDriver<'_> {
    /// Whether `cause` is a page that the destination needs, and that was lost.
    pub(crate) fn is_memory_lost(&self, cause: &SourceFailure) -> bool {
        let handed_over = matches!(
            self.machine.stage(),
            SourceStage::Committed | SourceStage::HandedOver
        );
        match cause {
            SourceFailure::Ram(error) => handed_over && MemoryLost::is_in(error),
            SourceFailure::MemoryLost { .. } => handed_over,
            _ => false,
        }
    }

    /// Ends a handover whose guest was lost at the source. Notifies the destination.
    pub(crate) fn memory_lost(&mut self, cause: SourceFailure) -> MigrateError {
        let failure = match cause {
            SourceFailure::MemoryLost { .. } => cause,
            _ => {
                let mut failure = SourceFailure::memory_lost(&self.shared.ram);
                if let (SourceFailure::MemoryLost { notified, .. }, Some(active)) =
                    (&mut failure, &mut self.active)
                {
                    *notified = active.session.notify_memory_lost(&self.shared.ram);
                }
                failure
            }
        };
        if let Some(active) = self.active.take() {
            active.end();
        }
        let begun = Instant::now();
        while !self.guest.has_ended() && begun.elapsed() < EXIT_TIMEOUT {
            thread::sleep(TICK);
        }
        MigrateError::new(failure, Outcome::Lost)
    }
}
