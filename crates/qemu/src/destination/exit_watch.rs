//! A thread that notices the end of QEMU while it waits for a guest.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;

/// The time between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Watches a process until it is dropped, and cancels the wait for a guest if the
/// process ends. While a guest is being received this is disabled: then the engine
/// notices the end itself, and knows better what it means.
#[derive(Debug)]
pub(crate) struct ExitWatch {
    process: Arc<Process>,
    flags: Arc<Flags>,
}

#[derive(Debug, Default)]
struct Flags {
    /// Locked during a check, so that no check is in progress after this was set.
    disabled: Mutex<bool>,
    stop: AtomicBool,
}

impl ExitWatch {
    /// Starts watching. Sets `cancel` when QEMU ends.
    pub(crate) fn start(process: &Arc<Process>, cancel: CancelFlag) -> io::Result<Self> {
        let exit_watch = Self {
            process: Arc::clone(process),
            flags: Arc::default(),
        };
        let (process, flags) = (
            Arc::clone(&exit_watch.process),
            Arc::clone(&exit_watch.flags),
        );
        thread::Builder::new()
            .name("qemu-exit-watch".to_owned())
            .spawn(move || {
                while !flags.stop.load(Ordering::Acquire) {
                    if flags.check(&process, &cancel) {
                        return;
                    }
                    thread::sleep(POLL_INTERVAL);
                }
            })?;
        Ok(exit_watch)
    }

    /// A guest is being received: from now on nothing is cancelled.
    pub(crate) fn disable(&self) {
        self.flags.set_disabled(true);
    }

    /// No guest is being received any more.
    pub(crate) fn enable(&self) {
        self.flags.set_disabled(false);
    }
}

impl Flags {
    fn set_disabled(&self, disabled: bool) {
        // A flag is valid even if a thread panicked while it held the lock.
        *self.disabled.lock().unwrap_or_else(PoisonError::into_inner) = disabled;
    }

    /// Checks once. Returns whether this was the last check.
    fn check(&self, process: &Process, cancel: &CancelFlag) -> bool {
        let disabled = self.disabled.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = !*disabled && !process.is_alive();
        if ended {
            tracing::debug!(pid = process.pid(), "QEMU has ended");
            cancel.cancel();
        }
        ended
    }
}

impl Drop for ExitWatch {
    fn drop(&mut self) {
        self.flags.stop.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn watched() -> (Child, ExitWatch, CancelFlag) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Arc::new(Process::open(child.id()).unwrap());
        let cancel = CancelFlag::new();
        let exit_watch = ExitWatch::start(&process, cancel.clone()).unwrap();
        (child, exit_watch, cancel)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_the_process_cancels() {
        let (child, _watch, cancel) = watched();
        thread::sleep(2 * POLL_INTERVAL);
        assert!(!cancel.is_cancelled());
        end(child);
        while !cancel.is_cancelled() {
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn nothing_is_cancelled_while_disabled() {
        let (child, exit_watch, cancel) = watched();
        // Also not by a check in progress, which would cancel only sometimes.
        exit_watch.disable();
        end(child);
        thread::sleep(2 * POLL_INTERVAL);
        assert!(!cancel.is_cancelled());
        assert!(!exit_watch.flags.check(&exit_watch.process, &cancel));
        assert!(!cancel.is_cancelled());
        exit_watch.enable();
        while !cancel.is_cancelled() {
            thread::sleep(POLL_INTERVAL);
        }
    }
}
