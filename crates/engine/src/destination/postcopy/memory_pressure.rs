//! Waiting for memory when the host has none for a page.
//!
//! Other users may fill the file system or the pool of huge pages after the check at the offer.
//! Before the guest may run here, a lack of memory ends the migration: the source has everything.
//! Afterwards receivers wait until there is memory, as long as it takes. The guest waits where it
//! needs such a page, and nothing is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use hikkoshi_linux::StopEventFd;
use hikkoshi_userfault::CopyError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Between two tries. The kernel does not report when memory is free again.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Whether to wait for memory, shared by all threads that install pages.
#[derive(Debug)]
pub(crate) struct MemoryPressure {
    stop: StopEventFd,
    waits: AtomicBool,
    interrupted: AtomicBool,
    short: AtomicBool,
}

impl MemoryPressure {
    /// Does not wait until [`wait_for_memory`](Self::wait_for_memory) is called. `stop` ends every
    /// wait.
    pub(crate) fn new(stop: StopEventFd) -> Self {
        Self {
            stop,
            waits: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            short: AtomicBool::new(false),
        }
    }

    /// From now on the lack of memory is waited for.
    pub(crate) fn wait_for_memory(&self) {
        self.waits.store(true, Ordering::Release);
    }

    pub(crate) fn waits_for_memory(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    /// While this is on, no thread waits: the links that pages come from have ended, and their
    /// threads have to end, too.
    pub(crate) fn interrupt(&self, on: bool) {
        self.interrupted.store(on, Ordering::Release);
    }

    /// Calls `install` again as long as it fails for lack of memory and waiting makes sense.
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

    /// There was no memory. Waits for [`PAUSE`]; `true` when another try makes sense.
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
                 needs them, and nothing is lost; free memory, and the migration continues automatically"
            );
        }
        // `stop` ends the wait early.
        let _ = poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(&PAUSE));
        !self.stop.is_stopped() && !interrupted()
    }

    /// There is memory again.
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
        let stop = StopEventFd::new().unwrap();
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
