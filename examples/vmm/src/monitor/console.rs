//! What the guest prints: the lines that came out of its serial port.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Result;

/// Long enough for a line from a busy host. It only prevents a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal. Both machines of a move write to the same one, as the guest may be moved in the
/// middle of a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    text: Mutex<String>,
    changed: Condvar,
}

/// A place in the text: after what was printed up to some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position(usize);

impl Console {
    /// The beginning of the text.
    #[allow(clippy::unused_self)] // as `end`
    pub(crate) fn start(&self) -> Position {
        Position(0)
    }

    /// The end of the text.
    pub(crate) fn end(&self) -> Position {
        Position(self.lock().len())
    }

    /// Waits for a line that begins with `start`, after `position`; returns the rest of it, and the
    /// position after it.
    ///
    /// # Errors
    ///
    /// The guest reports a bad page, or has failed, or is silent.
    pub(crate) fn wait_for(&self, start: &str, position: Position) -> Result<(String, Position)> {
        let deadline = Instant::now() + PATIENCE;
        let mut text = self.lock();
        let mut next = position.0;
        loop {
            while let Some(length) = text.get(next..).and_then(|rest| rest.find('\n')) {
                let line = text.get(next..next + length).unwrap_or_default().trim_end();
                next += length + 1;
                if let Some(rest) = line.strip_prefix(start) {
                    return Ok((rest.to_owned(), Position(next)));
                }
                if line.starts_with("failed:") || line.contains("BAD") {
                    return Err(format!("the guest says: {line}").into());
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("no line {start:?} from the guest: {text}").into());
            }
            (text, _) = self
                .0
                .changed
                .wait_timeout(text, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.0.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().push_str(&String::from_utf8_lossy(bytes));
        self.0.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
