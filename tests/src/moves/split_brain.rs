//! Checks that a guest never runs in two QEMUs at once during a migration.

use hikkoshi_lab::{Event, Vm, never_retried};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(10);
/// Time limit for one check.
const ANSWER: Duration = Duration::from_secs(3);

/// Watches both QEMUs until it is finished.
#[derive(Debug)]
pub struct SplitBrainWatcher {
    source: Watched,
    destination: Watched,
    stop: Arc<AtomicBool>,
    result: Receiver<Result<u64, String>>,
}

/// One side, and its state at the start.
#[derive(Debug)]
struct Watched {
    vm: Arc<Vm>,
    ran: bool,
    events: usize,
}

/// A time span in which the guest ran, by the host's clock; without an end, it still runs.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: Duration,
    to: Option<Duration>,
}

fn runs(vm: &Vm) -> Option<bool> {
    vm.status().ok().map(|status| status == "running")
}

impl Watched {
    fn new(vm: &Arc<Vm>) -> Self {
        let events = vm.qmp().events().len();
        Self {
            ran: runs(vm) == Some(true),
            events,
            vm: Arc::clone(vm),
        }
    }

    /// The spans in which it ran, from QEMU's events: `STOP` comes after the processors have
    /// stopped, `RESUME` before they start.
    fn runs(&self, answers: bool) -> Vec<Run> {
        if answers {
            // The answer comes after all earlier events.
            let _ = self.vm.status();
        }
        let events = self.vm.qmp().events();
        let began = self.ran.then_some(Duration::ZERO);
        intervals(began, &events[self.events..])
    }
}

fn intervals(mut since: Option<Duration>, events: &[Event]) -> Vec<Run> {
    let mut runs = Vec::new();
    for event in events {
        match (event.name.as_str(), since) {
            ("RESUME", None) => since = Some(event.happened),
            ("STOP", Some(from)) => {
                runs.push(Run {
                    from,
                    to: Some(event.happened),
                });
                since = None;
            }
            _ => {}
        }
    }
    runs.extend(since.map(|from| Run { from, to: None }));
    runs
}

impl SplitBrainWatcher {
    /// Starts to watch.
    ///
    /// # Panics
    /// When no thread can be started.
    pub fn start(source: &Arc<Vm>, destination: &Arc<Vm>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (one, other, stopped) = (
            Arc::clone(source),
            Arc::clone(destination),
            Arc::clone(&stop),
        );
        let (source, destination) = (Watched::new(source), Watched::new(destination));
        let (sender, result) = channel();
        let watch = move || {
            let mut looks = 0;
            let mut before = runs(&one);
            while !stopped.load(Ordering::Acquire) {
                let between = runs(&other);
                let after = runs(&one);
                // A guest does not return, so one that ran before and after also ran in between.
                if [before, between, after] == [Some(true); 3] {
                    return Err("both QEMUs report that they run the guest".to_owned());
                }
                before = after;
                looks += 1;
                std::thread::sleep(EVERY);
            }
            Ok(looks)
        };
        // The receiver may be gone.
        std::thread::spawn(move || drop(sender.send(watch())));
        Self {
            source,
            destination,
            stop,
            result,
        }
    }

    /// Ends the watch. Returns whether both QEMUs answer: one whose main loop waits for a page of a
    /// broken post-copy never does.
    ///
    /// # Panics
    /// When the guest ran in both at the same time.
    pub fn finish(self) -> bool {
        self.stop.store(true, Ordering::Release);
        let answers = match self.result.recv_timeout(ANSWER) {
            Ok(Ok(looks)) => looks > 0,
            Ok(Err(twice)) => {
                never_retried(&twice);
                panic!("{twice}");
            }
            Err(_) => false,
        };
        let (source, destination) = (self.source.runs(true), self.destination.runs(answers));
        for one in &source {
            for other in &destination {
                // The time at which a killed QEMU stopped is unknown.
                let ended = |run: &Run, vm: &Vm| {
                    run.to.unwrap_or(match vm.exit_status() {
                        Some(_) => run.from,
                        None => Duration::MAX,
                    })
                };
                let apart = ended(one, &self.source.vm) <= other.from
                    || ended(other, &self.destination.vm) <= one.from;
                if !apart {
                    never_retried("the guest ran in both QEMUs");
                    panic!("both ran at once: source {source:?}, destination {destination:?}");
                }
            }
        }
        answers
    }
}

impl Drop for SplitBrainWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, at: u64) -> Event {
        Event {
            name: name.to_owned(),
            data: serde_json::Value::Null,
            at: std::time::Instant::now(),
            happened: Duration::from_secs(at),
        }
    }

    #[test]
    fn runs_are_derived_from_events() {
        let events = [event("STOP", 5), event("RESUME", 7), event("OTHER", 8)];
        let read = intervals(Some(Duration::ZERO), &events);
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].to, Some(Duration::from_secs(5)));
        assert_eq!((read[1].from, read[1].to), (Duration::from_secs(7), None));
        assert!(intervals(None, &events[..1]).is_empty());
    }
}
