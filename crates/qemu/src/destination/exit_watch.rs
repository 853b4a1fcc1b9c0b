//! Notices that QEMU has ended while nobody talks to it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::Cancel;
use hikkoshi_linux::Process;

/// How often to look. Nothing is lost meanwhile but the operator's time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Watches a process for as long as it is not dropped, and cancels the wait for
/// a guest when the process ends. With a guest on its way the engine finds out
/// by itself, and knows better what it means: then this looks disabled.
#[derive(Debug)]
pub(crate) struct ExitWatch {
    process: Arc<Process>,
    flags: Arc<Flags>,
}

#[derive(Debug, Default)]
struct Flags {
    /// Held for the length of a look: who has told it to look disabled need not
    /// fear one that had begun before.
    disabled: Mutex<bool>,
    stop: AtomicBool,
}

impl ExitWatch {
    /// Begins it; `cancel` is set at QEMU's end.
    pub(crate) fn start(process: &Arc<Process>, cancel: Cancel) -> io::Result<Self> {
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

    /// A guest is on its way: from now on nothing is cancelled.
    pub(crate) fn disable(&self) {
        self.flags.set_disabled(true);
    }

    /// None is any more.
    pub(crate) fn enable(&self) {
        self.flags.set_disabled(false);
    }
}

impl Flags {
    fn set_disabled(&self, disabled: bool) {
        // A flag is whole whatever became of who held it.
        *self.disabled.lock().unwrap_or_else(PoisonError::into_inner) = disabled;
    }

    /// One look; whether it was the last.
    fn check(&self, process: &Process, cancel: &Cancel) -> bool {
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

    fn watched() -> (Child, ExitWatch, Cancel) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Arc::new(Process::open(child.id()).unwrap());
        let cancel = Cancel::new();
        let exit_watch = ExitWatch::start(&process, cancel.clone()).unwrap();
        (child, exit_watch, cancel)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_the_process_cancels() {
        let (child, _vigil, cancel) = watched();
        thread::sleep(2 * POLL_INTERVAL);
        assert!(!cancel.is_cancelled());
        end(child);
        while !cancel.is_cancelled() {
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn while_it_looks_away_nothing_is_cancelled() {
        let (child, exit_watch, cancel) = watched();
        // Also none that is under way: that would cancel sometimes only.
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
