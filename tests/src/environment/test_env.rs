//! A test's slot on the host, and its lab folder.

use hikkoshi_lab::Lab;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// Guests are emulated and use a processor each; more at once would only compete.
const MAX_AT_ONCE: usize = 4;

/// The threads whose tests have a slot.
static BUSY: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());
static FREED: Condvar = Condvar::new();

fn busy() -> MutexGuard<'static, Vec<ThreadId>> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of slots on this host.
pub(crate) fn slots() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_AT_ONCE))
}

/// A test's slot on the host, and its lab folder.
#[derive(Debug)]
pub struct TestEnv {
    lab: Lab,
    turn: Arc<Turn>,
}

/// The slot of a test, which runs in this thread.
#[derive(Debug)]
struct Turn(ThreadId);

impl Drop for Turn {
    fn drop(&mut self) {
        busy().retain(|thread| *thread != self.0);
        FREED.notify_one();
    }
}

impl TestEnv {
    /// Waits for a free slot.
    ///
    /// # Panics
    /// When this thread's test has a slot already: two tests that each waited for a second one
    /// would wait forever. When the lab folder cannot be created.
    #[allow(clippy::new_without_default)] // it waits
    pub fn new() -> Self {
        let most = slots();
        let thread = thread::current().id();
        let mut busy = busy();
        assert!(
            !busy.contains(&thread),
            "this test has a slot already: use `TestEnv::another`"
        );
        while busy.len() >= most {
            busy = FREED.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        busy.push(thread);
        drop(busy);
        Self {
            turn: Arc::new(Turn(thread)),
            lab: Lab::new().unwrap(),
        }
    }

    /// One more lab folder, in the slot that the test has.
    ///
    /// # Panics
    /// When it cannot be created.
    pub fn another(&self) -> Self {
        Self {
            turn: Arc::clone(&self.turn),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_one_slot_for_all_its_labs() {
        let env = TestEnv::new();
        let other = env.another();
        assert_ne!(env.folder(), other.folder());
        let second = std::panic::catch_unwind(TestEnv::new);
        assert!(second.is_err(), "a second slot for one test");
        drop(env);
        assert!(busy().contains(&thread::current().id()), "freed too early");
        drop(other);
        assert!(!busy().contains(&thread::current().id()), "not freed");
        drop(TestEnv::new());
    }
}
