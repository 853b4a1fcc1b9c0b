//! What the guest prints: the lines that came out of its serial port.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Result;

/// Long enough for a line from a busy host. It only prevents a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal. All machines of a move write to the same one, as the guest may be moved in the
/// middle of a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// What was not looked at yet.
    text: Mutex<String>,
    changed: Condvar,
}

impl Console {
    /// Waits for a line that begins with `start`; returns the rest of it. The next call
    /// begins after it.
    ///
    /// # Errors
    ///
    /// The guest reports a bad page, or has failed, or is silent.
    pub(crate) fn wait_for(&self, start: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut text = self.lock();
        loop {
            while let Some((line, rest)) = text.split_once('\n') {
                let (line, rest) = (line.trim_end().to_owned(), rest.to_owned());
                *text = rest;
                if let Some(rest) = line.strip_prefix(start) {
                    return Ok(rest.to_owned());
                }
                if line.starts_with("failed:") || line.contains("BAD") {
                    return Err(format!("the guest says: {line}").into());
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("no line {start:?} from the guest: {text}").into());
            }
            let waited = self.0.changed.wait_timeout(text, left);
            text = waited.unwrap_or_else(PoisonError::into_inner).0;
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
