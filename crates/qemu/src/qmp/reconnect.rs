//! Connecting to the monitor of a QEMU after reattaching to its process.
//!
//! The connection is made as late as possible: QEMU does not answer while its main
//! loop waits for a page, and much can be done without it.

use std::time::{Duration, Instant};

use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use thiserror::Error;

use crate::qmp::connection::RETRY_INTERVAL;
use crate::qmp::{Client, ConnectError, Monitor, QmpError};

/// How long to wait for the greeting in one attempt. QEMU may be waiting for a page.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// Practically infinite: the wait is ended by other means.
pub(crate) const NO_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A command could not be sent to QEMU's monitor, or failed.
#[derive(Debug, Error)]
pub(crate) enum MonitorError {
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The command failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

/// How long to try to connect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectTimeouts {
    /// If the socket does not exist, refuses, or belongs to another process.
    pub(crate) failing: Duration,
    /// If QEMU listens, but does not greet.
    pub(crate) silent: Duration,
}

/// How long a QEMU may be silent after reattaching.
const SILENT_TIMEOUT: Duration = Duration::from_secs(20);

/// For a QEMU after reattaching: it first has to notice that the killed engine has
/// disconnected.
pub(crate) fn reconnect_timeouts(monitor: &dyn Monitor) -> ConnectTimeouts {
    let failing = monitor.reopen_timeout();
    ConnectTimeouts {
        failing,
        silent: failing.max(SILENT_TIMEOUT),
    }
}

/// The monitor, which is connected since attaching.
pub(crate) fn connected(client: &mut Option<Client>) -> Result<&mut Client, QmpError> {
    client.as_mut().ok_or_else(|| QmpError::Closed {
        doing: "a command: the monitor is not connected".to_owned(),
    })
}

/// The monitor; connects first if necessary. QEMU may be waiting for a page, or may
/// not have noticed yet that the previous program has disconnected. Fails early if
/// `process` ends, or once `give_up` is set.
pub(crate) fn get_or_connect<'a>(
    client: &'a mut Option<Client>,
    monitor: &dyn Monitor,
    process: &Process,
    timeouts: ConnectTimeouts,
    give_up: &CancelFlag,
) -> Result<&'a mut Client, ConnectError> {
    let connected = match client.take() {
        Some(client) => client,
        None => connect(monitor, process, timeouts, give_up)?,
    };
    Ok(client.insert(connected))
}

fn connect(
    monitor: &dyn Monitor,
    process: &Process,
    timeouts: ConnectTimeouts,
    give_up: &CancelFlag,
) -> Result<Client, ConnectError> {
    let begun = Instant::now();
    loop {
        let error = match monitor.open(GREETING_TIMEOUT) {
            // Another program may have replaced the socket.
            Ok(client) if client.peer() == Some(process.pid()) => return Ok(client),
            Ok(client) => ConnectError::AnotherProcess {
                monitor: Box::new(monitor.address().clone()),
                expected: process.pid(),
                found: client.peer().unwrap_or_default(),
            },
            Err(error) => error,
        };
        let timeouts = if error.is_silent() {
            timeouts.silent
        } else {
            timeouts.failing
        };
        if give_up.is_cancelled() || begun.elapsed() >= timeouts || !process.is_alive() {
            return Err(error);
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::{MonitorSocket, scripted};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::Arc;
    use std::thread;

    fn socket(path: &Path) -> MonitorSocket {
        MonitorSocket::new(path)
    }

    const SILENCE_ONLY: ConnectTimeouts = ConnectTimeouts {
        failing: Duration::ZERO,
        silent: NO_TIMEOUT,
    };

    /// A listener that never answers, like a QEMU that waits for a page.
    #[test]
    fn a_silent_monitor_is_waited_for_until_cancelled_or_the_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = Arc::new(Process::open(child.id()).unwrap());
        let give_up = CancelFlag::new();
        let connecting = || {
            let (path, process) = (path.clone(), Arc::clone(&process));
            let give_up = give_up.clone();
            thread::spawn(move || {
                connect(&socket(&path), &process, SILENCE_ONLY, &give_up).unwrap_err()
            })
        };
        let first = connecting();
        thread::sleep(GREETING_TIMEOUT + GREETING_TIMEOUT);
        assert!(!first.is_finished(), "not given up");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(first.join().unwrap().is_silent());
        give_up.cancel();
        assert!(connecting().join().unwrap().is_silent());
    }

    #[test]
    fn another_process_behind_the_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let server = scripted::serve(&path, 10, |_| Vec::new());
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        let at_once = ConnectTimeouts {
            failing: Duration::ZERO,
            silent: Duration::ZERO,
        };
        let error = connect(&socket(&path), &process, at_once, &CancelFlag::new()).unwrap_err();
        let own = std::process::id();
        let is_it = matches!(error, ConnectError::AnotherProcess { expected, found, .. }
            if (expected, found) == (child.id(), own));
        assert!(is_it, "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
        // Only the opening of the session.
        let received = server.join().unwrap();
        assert!(received.is_empty(), "{received:?}");
    }

    #[test]
    fn a_missing_socket_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let path = folder.path().join("nothing");
        let error = connect(&socket(&path), &own, SILENCE_ONLY, &CancelFlag::new()).unwrap_err();
        assert!(!error.is_silent(), "{error}");
    }
}
