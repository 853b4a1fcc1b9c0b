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
            self.handover.stage(),
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
        let ended = self.guest.why_ended();
        let mut failure = match cause {
            SourceFailure::MemoryLost { .. } => cause,
            _ => {
                let mut failure = SourceFailure::memory_lost(&self.shared.ram, ended.clone());
                let said = self
                    .active
                    .as_mut()
                    .is_some_and(|active| active.session.notify_memory_lost(&failure));
                if let SourceFailure::MemoryLost { notified, .. } = &mut failure {
                    *notified = said;
                }
                failure
            }
        };
        // Another thread has notified the destination.
        if let SourceFailure::MemoryLost { why, .. } = &mut failure {
            *why = why.take().or(ended);
        }
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
