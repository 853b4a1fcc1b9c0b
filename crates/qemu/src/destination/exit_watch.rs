//! Notices that QEMU has ended while nobody talks to it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::Cancel;
use hikkoshi_linux::Process;

/// How often to look. Nothing is lost meanwhile but the operator's time.
const LOOK: Duration = Duration::from_millis(100);

/// Watches a process for as long as it is not dropped, and cancels the wait for
/// a guest when the process ends. With a guest on its way the engine finds out
/// by itself, and knows better what it means: then this looks away.
#[derive(Debug)]
pub(crate) struct Vigil {
    process: Arc<Process>,
    flags: Arc<Flags>,
}

#[derive(Debug, Default)]
struct Flags {
    /// Held for the length of a look: who has told it to look away need not
    /// fear one that had begun before.
    looking_away: Mutex<bool>,
    over: AtomicBool,
}

impl Vigil {
    /// Begins it; `cancel` is set at QEMU's end.
    pub(crate) fn start(process: &Arc<Process>, cancel: Cancel) -> io::Result<Self> {
        let vigil = Self {
            process: Arc::clone(process),
            flags: Arc::default(),
        };
        let (process, flags) = (Arc::clone(&vigil.process), Arc::clone(&vigil.flags));
        thread::Builder::new()
            .name("qemu-vigil".to_owned())
            .spawn(move || {
                while !flags.over.load(Ordering::Acquire) {
                    if flags.look(&process, &cancel) {
                        return;
                    }
                    thread::sleep(LOOK);
                }
            })?;
        Ok(vigil)
    }

    /// A guest is on its way: from now on nothing is cancelled.
    pub(crate) fn look_away(&self) {
        self.flags.set_looking_away(true);
    }

    /// None is any more.
    pub(crate) fn look(&self) {
        self.flags.set_looking_away(false);
    }
}

impl Flags {
    fn set_looking_away(&self, away: bool) {
        // A flag is whole whatever became of who held it.
        *self
            .looking_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = away;
    }

    /// One look; whether it was the last.
    fn look(&self, process: &Process, cancel: &Cancel) -> bool {
        let away = self
            .looking_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ended = !*away && !process.is_alive();
        if ended {
            tracing::debug!(pid = process.pid(), "QEMU has ended");
            cancel.cancel();
        }
        ended
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        self.flags.over.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn watched() -> (Child, Vigil, Cancel) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Arc::new(Process::open(child.id()).unwrap());
        let cancel = Cancel::new();
        let vigil = Vigil::start(&process, cancel.clone()).unwrap();
        (child, vigil, cancel)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_end_of_the_process_cancels() {
        let (child, _vigil, cancel) = watched();
        thread::sleep(2 * LOOK);
        assert!(!cancel.is_cancelled());
        end(child);
        while !cancel.is_cancelled() {
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn while_it_looks_away_nothing_is_cancelled() {
        let (child, vigil, cancel) = watched();
        // Also none that is under way: that would cancel sometimes only.
        vigil.look_away();
        end(child);
        thread::sleep(2 * LOOK);
        assert!(!cancel.is_cancelled());
        assert!(!vigil.flags.look(&vigil.process, &cancel));
        assert!(!cancel.is_cancelled());
        vigil.look();
        while !cancel.is_cancelled() {
            thread::sleep(LOOK);
        }
    }
}
