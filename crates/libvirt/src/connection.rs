//! The connection to a libvirt daemon, and the event loop of the library.

use std::ops::Deref;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use virt::connect::Connect;
use virt::error::Error;

use crate::DomainError;
use crate::call::{Call, CallError, within};

/// A daemon that answers no keep-alive message for 5 × 3 s counts as gone.
const KEEP_ALIVE: (i32, u32) = (3, 5);

/// How long to wait for a connection to a daemon that may be starting: systemd listens for it
/// meanwhile. Less than the adapter waits for the answer to a command, so that the reason is
/// reported.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(25);

/// How long a daemon may take that does not have to do anything: one that works answers within
/// milliseconds.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection, closed with its last clone. (The binding does not do that.)
#[derive(Debug, Clone)]
pub(crate) struct Connection(Arc<Open>);

#[derive(Debug)]
struct Open {
    uri: String,
    connect: Connect,
}

/// An attempt to open a connection.
type Opening = Call<Result<Connection, DomainError>>;

/// Attempts that were not waited for any longer, by URI. The next one continues with them, so that
/// a daemon which hangs is not connected to again and again.
static UNFINISHED: Mutex<Vec<(String, Opening)>> = Mutex::new(Vec::new());

impl Connection {
    /// Connects to the daemon `uri`, which may be starting.
    pub(crate) fn open(uri: &str) -> Result<Self, DomainError> {
        Self::open_within(uri, OPEN_TIMEOUT)
    }

    /// Connects to the daemon `uri` within `limit`.
    pub(crate) fn open_within(uri: &str, limit: Duration) -> Result<Self, DomainError> {
        run_events().map_err(|what| DomainError::Events { what })?;
        let failed = |what: String| DomainError::Connect {
            uri: uri.to_owned(),
            what,
        };
        let deadline = Instant::now() + limit;
        loop {
            let earlier = take_unfinished(uri);
            let is_earlier = earlier.is_some();
            let opening = match earlier {
                Some(opening) => opening,
                None => {
                    let uri = uri.to_owned();
                    Call::start(move || Self::open_now(&uri))
                        .map_err(|error| failed(error.to_string()))?
                }
            };
            match opening.wait(deadline.saturating_duration_since(Instant::now())) {
                // It may have returned long ago.
                Ok(Err(_)) if is_earlier => {}
                Ok(Ok(connection)) if is_earlier && !connection.is_alive() => {}
                Ok(opened) => return opened,
                Err(RecvTimeoutError::Disconnected) if is_earlier => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("the thread that connects has ended".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    unfinished().push((uri.to_owned(), opening));
                    return Err(DomainError::NoAnswer {
                        uri: uri.to_owned(),
                        asked: "to connect".to_owned(),
                        after: limit,
                    });
                }
            }
        }
    }

    /// Connects without a limit.
    fn open_now(uri: &str) -> Result<Self, DomainError> {
        let connect = Connect::open(Some(uri)).map_err(|error| DomainError::Connect {
            uri: uri.to_owned(),
            what: error.message().to_owned(),
        })?;
        if let Err(error) = connect.set_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1) {
            tracing::debug!(error = error.message(), "libvirt's keep-alive");
        }
        let uri = uri.to_owned();
        Ok(Self(Arc::new(Open { uri, connect })))
    }

    /// Lets the daemon answer a question, within `limit`.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        question: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, CallError> {
        let connection = self.clone();
        within(limit, move || question(&connection))
    }

    /// The daemon.
    pub(crate) fn uri(&self) -> &str {
        &self.0.uri
    }

    /// Checks that the daemon answers at all.
    ///
    /// # Errors
    ///
    /// [`DomainError::NoAnswer`], or the connection was lost.
    pub(crate) fn ping(&self) -> Result<(), DomainError> {
        let asked = self.ask(PING_TIMEOUT, |connection| connection.get_lib_version());
        asked.map(drop).map_err(|error| match error {
            CallError::NoAnswer(after) => DomainError::NoAnswer {
                uri: self.0.uri.clone(),
                asked: "whether it is there".to_owned(),
                after,
            },
            error => DomainError::Connect {
                uri: self.0.uri.clone(),
                what: error.text(),
            },
        })
    }

    /// Whether the daemon is still there: it has not ended, nor failed to answer keep-alive
    /// messages. Does not ask it.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.connect.is_alive().unwrap_or(false)
    }
}

fn unfinished() -> std::sync::MutexGuard<'static, Vec<(String, Opening)>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_unfinished(uri: &str) -> Option<Opening> {
    let mut all = unfinished();
    let found = all.iter().position(|(of, _)| of == uri)?;
    Some(all.swap_remove(found).1)
}

impl Deref for Connection {
    type Target = Connect;

    fn deref(&self) -> &Connect {
        &self.0.connect
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // To close it, the library asks the daemon, and waits for its answer: not here.
        let mut last = self.connect.clone();
        close(&mut self.connect);
        let closing = thread::Builder::new()
            .name("libvirt-close".to_owned())
            .spawn(move || close(&mut last));
        if let Err(error) = closing {
            tracing::debug!(%error, "closing a connection to libvirt");
        }
    }
}

fn close(connect: &mut Connect) {
    if let Err(error) = connect.close() {
        tracing::debug!(error = error.message(), "closing a connection to libvirt");
    }
}

/// Runs libvirt's event loop on a thread, once in a process. It must be registered before the first
/// connection is opened.
fn run_events() -> Result<(), String> {
    static RUNNING: OnceLock<Result<(), String>> = OnceLock::new();
    let run = || {
        let text = |error: Error| error.message().to_owned();
        // It would print each error.
        virt::error::clear_error_callback();
        virt::event::event_register_default_impl().map_err(text)?;
        thread::Builder::new()
            .name("libvirt-events".to_owned())
            .spawn(|| {
                while let Ok(()) = virt::event::event_run_default_impl() {}
                tracing::warn!("libvirt's event loop has ended");
            })
            .map_err(|error| error.to_string())?;
        Ok(())
    };
    RUNNING.get_or_init(run).clone()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A daemon that is stopped: the kernel accepts connections for it.
    #[test]
    fn a_daemon_that_hangs_is_waited_for_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let daemon = UnixListener::bind(&path).unwrap();
        let uri = format!("qemu:///system?socket={}", path.display());
        for _ in 0..3 {
            let error = Connection::open_within(&uri, Duration::from_secs(1)).unwrap_err();
            let text = error.to_string();
            let expected = format!("libvirt's daemon at {uri} has not answered for 1 s");
            assert!(text.starts_with(&expected), "{text}");
        }
        // One attempt for all of them.
        daemon.set_nonblocking(true).unwrap();
        let connected = daemon.accept().unwrap();
        assert!(daemon.accept().is_err(), "connected once");
        // When it has ended, another attempt says so.
        drop((connected, daemon));
        std::fs::remove_file(&path).unwrap();
        let error = Connection::open_within(&uri, Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, DomainError::Connect { .. }), "{error}");
    }
}
