//! Notices that QEMU has ended while nobody talks to it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::Cancel;
use hikkoshi_faults::Process;

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
    looking_away: AtomicBool,
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
                    let looks = !flags.looking_away.load(Ordering::Acquire);
                    if looks && !process.is_alive() {
                        tracing::debug!(pid = process.pid(), "QEMU has ended");
                        return cancel.cancel();
                    }
                    thread::sleep(LOOK);
                }
            })?;
        Ok(vigil)
    }

    /// A guest is on its way.
    pub(crate) fn look_away(&self) {
        self.flags.looking_away.store(true, Ordering::Release);
    }

    /// None is any more.
    pub(crate) fn look(&self) {
        self.flags.looking_away.store(false, Ordering::Release);
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
        vigil.look_away();
        // One look may be under way.
        thread::sleep(2 * LOOK);
        end(child);
        thread::sleep(2 * LOOK);
        assert!(!cancel.is_cancelled());
        vigil.look();
        while !cancel.is_cancelled() {
            thread::sleep(LOOK);
        }
    }
}
