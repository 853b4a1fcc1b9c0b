//! Ctrl-C and SIGTERM ask a migration to stop; they never kill it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hikkoshi_engine::report::{Phase, Progress};
use hikkoshi_engine::{Cancel, Observer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::exit::{Exit, Status};
use crate::output::reason::Reason;

/// A flag that the first signal sets. Later ones change nothing: whether a
/// migration can stop is the engine's to say.
pub fn cancel_on_signals() -> Result<Cancel, Exit> {
    let cancel = Cancel::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, cancel.flag()).map_err(|error| {
            Exit::new(
                Status::Usage,
                Reason::System,
                format!("handling signals: {error}"),
            )
        })?;
    }
    Ok(cancel)
}

/// How often to look whether somebody has asked to stop.
const LOOK: Duration = Duration::from_millis(50);

const TOO_LATE: &str = "the destination has been told to run the guest, and has not said yet \
                        whether it does: not stopping before it has";

/// Answers who asks to stop while the engine waits for the destination to say
/// that the guest runs: the one time in which the engine itself says nothing.
#[derive(Debug)]
pub struct TooLate {
    cancel: Cancel,
    observer: Arc<dyn Observer>,
    /// The destination has answered, or never will.
    over: Arc<AtomicBool>,
}

impl TooLate {
    /// For a migration that `cancel` stops and that `observer` watches.
    pub fn new(cancel: Cancel, observer: Arc<dyn Observer>) -> Self {
        Self {
            cancel,
            observer,
            over: Arc::default(),
        }
    }

    /// What the engine must be watched with instead of the observer: by what
    /// it says it is known that the destination has answered.
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(Listening {
            observer: Arc::clone(&self.observer),
            over: Arc::clone(&self.over),
        })
    }

    /// Nobody need be told any more.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// From now on it is too late.
    pub fn begin(&self) {
        // What was said before was about something else.
        self.over.store(false, Ordering::Release);
        let (cancel, over) = (self.cancel.clone(), Arc::clone(&self.over));
        let observer = Arc::clone(&self.observer);
        let started = thread::Builder::new()
            .name("too-late".into())
            .spawn(move || {
                while !over.load(Ordering::Acquire) {
                    if cancel.is_cancelled() {
                        // Who asks after the answer is not told: so the answer is
                        // looked at after the question.
                        if !over.load(Ordering::Acquire) {
                            observer.notice(TOO_LATE);
                        }
                        return;
                    }
                    thread::sleep(LOOK);
                }
            });
        if let Err(error) = started {
            // The move is worth more than a word about it.
            tracing::warn!(%error, "no thread to answer who wants to stop it too late");
        }
    }
}

impl Drop for TooLate {
    fn drop(&mut self) {
        self.end();
    }
}

/// Passes everything on.
#[derive(Debug)]
struct Listening {
    observer: Arc<dyn Observer>,
    over: Arc<AtomicBool>,
}

impl Observer for Listening {
    fn progress(&self, progress: &Progress) {
        if progress.phase == Phase::Postcopy {
            self.over.store(true, Ordering::Release);
        }
        self.observer.progress(progress);
    }

    fn notice(&self, text: &str) {
        self.over.store(true, Ordering::Release);
        self.observer.notice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[derive(Debug)]
    struct Heard(Sender<String>);

    impl Observer for Heard {
        fn progress(&self, _: &Progress) {}
        fn notice(&self, text: &str) {
            self.0.send(text.to_owned()).unwrap();
        }
    }

    fn too_late() -> (TooLate, Cancel, Receiver<String>) {
        let (sender, heard) = channel();
        let cancel = Cancel::new();
        let too_late = TooLate::new(cancel.clone(), Arc::new(Heard(sender)));
        (too_late, cancel, heard)
    }

    #[test]
    fn who_asks_too_late_is_told_once() {
        let (too_late, cancel, heard) = too_late();
        too_late.observer().notice("a round was long");
        assert_eq!(heard.recv().unwrap(), "a round was long");
        too_late.begin();
        cancel.cancel();
        assert_eq!(heard.recv().unwrap(), TOO_LATE);
        drop(too_late);
        // Nobody is left who would say more.
        assert!(heard.recv().is_err());
    }

    #[test]
    fn once_the_destination_has_answered_the_engine_speaks_itself() {
        let (too_late, cancel, heard) = too_late();
        too_late.begin();
        too_late.observer().notice("it runs there");
        cancel.cancel();
        drop(too_late);
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["it runs there"]);
    }
}
