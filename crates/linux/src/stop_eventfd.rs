//! A request to stop for loops that wait in `poll` or `epoll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Asks loops to stop, and wakes them. Clones share one state. Once stopped, a handle stays
/// stopped. Any number of loops may wait for it.
#[derive(Clone, Debug)]
pub struct StopEventFd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stopped: AtomicBool,
    /// Readable after the first `stop`; never read, so it stays readable.
    event: OwnedFd,
}

impl StopEventFd {
    /// Creates a handle that is not stopped.
    ///
    /// # Errors
    ///
    /// When no eventfd can be created (too many open files).
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner {
            stopped: AtomicBool::new(false),
            event,
        })))
    }

    /// Asks every loop that uses this handle to stop.
    pub fn stop(&self) {
        // Release pairs with the acquire below: the loop that stops sees all writes made before the
        // stop.
        if !self.0.stopped.swap(true, Ordering::AcqRel) {
            // Adding one to a counter of zero cannot fail.
            let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether [`Self::stop`] has been called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }
}

/// For `poll`: readable after the stop.
impl AsFd for StopEventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
