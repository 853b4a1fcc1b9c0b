//! The guest's output, collected with its arrival times, on whichever machine the guest runs.

use crate::{GuestReport, LabError, never_retried};
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A line of the guest's console.
#[derive(Clone, Debug)]
pub struct ConsoleLine {
    /// When the end of the line arrived.
    pub at: Instant,
    /// The machine that printed it.
    pub vm: Arc<str>,
    /// The text, without the line end.
    pub text: String,
    /// The parsed text.
    pub report: GuestReport,
}

/// Collects the lines of one guest from every machine that it runs on. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Console(Arc<Collected>);

#[derive(Debug, Default)]
struct Collected {
    lines: Mutex<Vec<ConsoleLine>>,
    arrived: Condvar,
}

impl Console {
    /// An empty console.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of lines so far, for [`Console::since`].
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are no lines yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lines from number `first` on.
    pub fn since(&self, first: usize) -> Vec<ConsoleLine> {
        self.lock().get(first..).unwrap_or_default().to_vec()
    }

    /// All lines.
    pub fn lines(&self) -> Vec<ConsoleLine> {
        self.since(0)
    }

    /// The last lines as text, for messages.
    pub fn tail(&self) -> String {
        let lines = self.lock();
        let from = lines.len().saturating_sub(12);
        let texts: Vec<_> = lines[from..]
            .iter()
            .map(|line| format!("  {}: {}", line.vm, line.text))
            .collect();
        texts.join("\n")
    }

    /// Waits for a line, from number `first` on, for which `wanted` returns a value.
    ///
    /// # Errors
    /// When there was none within `timeout`; `what` describes it in the message.
    pub fn wait_for<T>(
        &self,
        what: &str,
        first: usize,
        timeout: Duration,
        mut wanted: impl FnMut(&ConsoleLine) -> Option<T>,
    ) -> Result<T, LabError> {
        let deadline = Instant::now() + timeout;
        let mut next = first;
        let mut lines = self.lock();
        loop {
            while let Some(line) = lines.get(next) {
                next += 1;
                if let Some(found) = wanted(line) {
                    return Ok(found);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(lines);
                return Err(LabError::TimedOut {
                    what: what.to_owned(),
                    after: timeout,
                    seen: self.tail(),
                });
            }
            lines = self
                .0
                .arrived
                .wait_timeout(lines, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Reads lines from a machine until it closes its console.
    pub(crate) fn follow(
        &self,
        vm: &str,
        from: impl Read + Send + 'static,
    ) -> Result<(), LabError> {
        let (console, vm) = (self.clone(), Arc::<str>::from(vm));
        std::thread::Builder::new()
            .name(format!("console-{vm}"))
            .spawn(move || console.read(&vm, BufReader::new(from)))
            .map(drop)
            .map_err(|source| LabError::Start {
                program: "the console thread".to_owned(),
                source,
            })
    }

    fn read(&self, vm: &Arc<str>, mut from: impl BufRead) {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            match from.read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
            if text.is_empty() {
                continue;
            }
            let line = ConsoleLine {
                at: Instant::now(),
                vm: Arc::clone(vm),
                report: GuestReport::parse(&text),
                text,
            };
            let is_wrong = match &line.report {
                GuestReport::Bad(_) => true,
                GuestReport::Verdict(verdict) => !verdict.ok,
                _ => false,
            };
            if is_wrong {
                never_retried(format_args!("a wrong page: {vm}: {}", line.text));
            }
            self.lock().push(line);
            self.0.arrived.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ConsoleLine>> {
        // After a panic of a reader the list is still consistent.
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only ends a test that hangs.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn lines_of_two_machines_are_collected() {
        let console = Console::new();
        console
            .follow("source", &b"idle: ok t=1.0 span_ms=1000 beat=1\r\n"[..])
            .unwrap();
        console
            .wait_for("the first report", 0, LONG, |line| {
                (&*line.vm == "source").then_some(())
            })
            .unwrap();
        let from = console.len();
        console
            .follow(
                "destination",
                &b"\nidle: ok t=2.0 span_ms=1000 beat=2\n"[..],
            )
            .unwrap();
        let beat = console
            .wait_for("the second report", from, LONG, |line| match &line.report {
                GuestReport::Idle(idle) => Some(idle.beat),
                _ => None,
            })
            .unwrap();
        assert_eq!(beat, 2);
        assert_eq!(console.lines().len(), 2, "empty lines are skipped");
    }

    #[test]
    fn a_timeout_shows_the_last_lines() {
        let console = Console::new();
        console.follow("source", &b"Kernel panic\n"[..]).unwrap();
        console.wait_for("anything", 0, LONG, |_| Some(())).unwrap();
        let error = console
            .wait_for("a verdict", 0, Duration::from_millis(1), |_| None::<()>)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("a verdict") && text.contains("source: Kernel panic"),
            "{text}"
        );
    }
}
