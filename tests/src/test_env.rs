//! A test's turn on the machine.

use hikkoshi_lab::Lab;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

/// Guests are emulated and keep a processor each; more at once only take turns.
const MOST_AT_ONCE: usize = 4;

static BUSY: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// One test's turn and its laboratory.
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
    /// Waits for a turn.
    ///
    /// # Panics
    /// When the laboratory cannot be made.
    #[allow(clippy::new_without_default)] // it waits
    pub fn new() -> Self {
        let most = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_AT_ONCE));
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

    /// Where its machines are.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// A folder for its files.
    pub fn folder(&self) -> &Path {
        self.lab.folder()
    }
}
