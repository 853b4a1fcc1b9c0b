//! Ending a loop that waits for faults.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Asks loops to end, and wakes them out of their wait. Clones are the same handle; once stopped
/// it stays so, and any number of loops may watch it.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stopped: AtomicBool,
    /// Readable from the first `stop` on; nobody ever reads it empty.
    event: OwnedFd,
}

impl Stop {
    /// A handle not stopped yet.
    ///
    /// # Errors
    ///
    /// When no eventfd can be had (too many open files).
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Inner {
            stopped: AtomicBool::new(false),
            event,
        })))
    }

    /// Asks every loop that watches this handle to end.
    pub fn stop(&self) {
        // Release pairs with the acquire below: what was written before the stop is seen by the
        // loop that ends because of it.
        if !self.0.stopped.swap(true, Ordering::AcqRel) {
            // Adding one to a counter that is zero cannot fail.
            let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether [`Self::stop`] has been called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }
}

/// For `poll`: readable once stopped.
impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
