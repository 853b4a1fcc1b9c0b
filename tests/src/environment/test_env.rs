//! A test's slot on the host, and its lab folder.

use hikkoshi_lab::Lab;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

/// Guests are emulated and use a processor each; more at once would only compete.
const MAX_AT_ONCE: usize = 4;

static BUSY: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// Number of slots on this host.
pub(crate) fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_AT_ONCE))
}

/// A test's slot on the host, and its lab folder.
#[derive(Debug)]
pub struct TestEnv {
    lab: Lab,
    _turn: Turn,
}

#[derive(Debug)]
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        *BUSY.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

impl TestEnv {
    /// Waits for a free slot.
    ///
    /// # Panics
    /// When the lab folder cannot be created.
    #[allow(clippy::new_without_default)] // it waits
    pub fn new() -> Self {
        let most = slots();
        let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy >= most {
            busy = FREED.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        *busy += 1;
        Self {
            _turn: Turn,
            lab: Lab::new().unwrap(),
        }
    }

    /// The lab of its machines.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The folder for its files.
    pub fn folder(&self) -> &Path {
        self.lab.folder()
    }
}
