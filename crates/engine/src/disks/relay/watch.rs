//! Watches the connection of a disk at the source: ends it when it was cancelled, or has stalled.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hikkoshi_link::{Stream, TICK};
use hikkoshi_linux::CancelFlag;

use super::{DiskFailure, Shared};
use crate::disks::stall_timer::{Position, StallTimer};

/// What the source needs to give up a connection.
pub(crate) struct DiskWatch {
    pub(crate) stall_timeout: Duration,
    /// Ends the connection: whatever the VMM waits for, it fails then.
    pub(crate) cancel: CancelFlag,
    /// Called when the connection has failed.
    pub(crate) failed: Failed,
}

type Failed = Box<dyn Fn() + Send + Sync>;

impl DiskWatch {
    /// The watch of this disk, and what is called when it fails.
    pub(super) fn of_disk(self, disk: String) -> (Failed, Watched) {
        let watched = Watched {
            disk,
            stall_timeout: self.stall_timeout,
            cancel: self.cancel,
        };
        (self.failed, watched)
    }
}

/// What the thread that watches needs.
pub(super) struct Watched {
    disk: String,
    stall_timeout: Duration,
    cancel: CancelFlag,
}

/// What was carried so far, in both directions.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// Bytes that have come from the link.
    pub(super) received: AtomicU64,
    /// Bytes that the link has taken.
    pub(super) sent: AtomicU64,
}

impl Carried {
    fn position(&self, stream: &Stream) -> Position {
        Position {
            received: self.received.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            acknowledged: stream.tcp_info().map(|info| info.acked),
        }
    }
}

impl Shared {
    /// Returns when the connection has ended, which it does here once it was cancelled; or with an
    /// error when it has stalled.
    pub(super) fn watch(&self, watched: Watched) -> Result<(), DiskFailure> {
        let Watched {
            disk,
            stall_timeout,
            cancel,
        } = watched;
        let mut timer = StallTimer::new(stall_timeout, Instant::now());
        let mut end = self.lock();
        while !end.over {
            if cancel.is_cancelled() {
                end.here = true;
                drop(end);
                self.end();
                return Ok(());
            }
            drop(end);
            let wait = (self.waiting(), self.paused.load(Ordering::Relaxed));
            let position = self.carried.position(&self.stream);
            let stalled = timer.has_stalled(wait, position, Instant::now());
            if let Some(after) = stalled {
                return Err(DiskFailure::Stalled { disk, after });
            }
            let waited = self.ended.wait_timeout(self.lock(), TICK);
            end = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}
