//! Memory for a page, where the host has none just now.
//!
//! The file system or the pool of huge pages may be used up by others between
//! two pages, although there was room for the guest when it was offered.
//! Before the guest may run here that ends the move: the source has
//! everything. Afterwards pages are waited with instead, as long as it takes:
//! whoever needs one waits, and nothing is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_linux::Stop;
use hikkoshi_userfault::CopyError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Between two tries. Nobody says when there is room.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Whether to wait for memory, shared by all threads that install pages.
#[derive(Debug)]
pub(crate) struct MemoryPressure {
    stop: Stop,
    waits: AtomicBool,
    interrupted: AtomicBool,
    short: AtomicBool,
}

impl MemoryPressure {
    /// Waits for nothing yet; never longer than until `stop`.
    pub(crate) fn new(stop: Stop) -> Self {
        Self {
            stop,
            waits: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            short: AtomicBool::new(false),
        }
    }

    /// From here on a page is waited with rather than given up.
    pub(crate) fn wait_for_memory(&self) {
        self.waits.store(true, Ordering::Release);
    }

    pub(crate) fn waits_for_memory(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    /// Nobody waits while this is on: the links that pages come from have
    /// ended, and their threads are to end, too.
    pub(crate) fn interrupt(&self, on: bool) {
        self.interrupted.store(on, Ordering::Release);
    }

    /// Calls `install` until it does not fail for want of memory, as long as waiting is worth it.
    pub(crate) fn retry(
        &self,
        mut install: impl FnMut() -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        loop {
            match install() {
                Err(CopyError::OutOfMemory { .. }) if self.wait() => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.found();
                    return Ok(());
                }
            }
        }
    }

    /// There was no room. Waits a little; `true` when it is worth another try.
    #[cold]
    pub(crate) fn wait(&self) -> bool {
        let interrupted = || self.interrupted.load(Ordering::Acquire);
        if self.stop.is_stopped() || !self.waits_for_memory() || interrupted() {
            return false;
        }
        if !self.short.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the host has no memory left for the guest's pages (its file system or huge-page \
                 pool is full, or a memory cgroup's limit is reached): the guest waits where it \
                 needs them, and nothing is lost; make room and it goes on by itself"
            );
        }
        // Ends early when stopped.
        let _ = poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(&PAUSE));
        !self.stop.is_stopped() && !interrupted()
    }

    /// There is room again.
    pub(crate) fn found(&self) {
        if self.short.load(Ordering::Relaxed) && self.short.swap(false, Ordering::Relaxed) {
            tracing::warn!("there is memory for the guest's pages again");
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn waits_only_when_it_may_and_until_stopped() {
        let stop = Stop::new().unwrap();
        let room = MemoryPressure::new(stop.clone());
        assert!(!room.wait(), "the source has everything");
        room.wait_for_memory();
        assert!(room.wait() && room.wait());
        room.found();
        assert!(room.wait());
        room.interrupt(true);
        assert!(!room.wait());
        room.interrupt(false);
        assert!(room.wait());
        stop.stop();
        assert!(!room.wait());
    }
}
