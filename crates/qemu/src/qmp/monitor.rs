//! Getting through to the monitor of a QEMU that was taken up.
//!
//! It is talked to as late as possible: while QEMU's main loop waits for a page
//! it says nothing, and much can be done without it.

use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_engine::Cancel;
use hikkoshi_linux::Process;
use thiserror::Error;

use crate::qmp::{Client, ConnectError, QmpError};

/// How long to listen for the greeting of a QEMU that may wait for a page.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two tries to get through to it.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Longer than anybody waits: the end comes from elsewhere.
pub(crate) const NO_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// QEMU's monitor did not do as it was told, or was not to be had.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// It does not answer.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It does not do as it is told.
    #[error(transparent)]
    Qmp(#[from] QmpError),
}

/// How long to try.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectTimeouts {
    /// With a QEMU that cannot be talked to.
    pub(crate) unreachable: Duration,
    /// With one that has a monitor, which says nothing.
    pub(crate) silent: Duration,
}

/// How long a QEMU that was taken up may take to turn to us: it has to notice
/// first that the killed engine's connection has ended.
pub(crate) const RECONNECT_TIMEOUTS: ConnectTimeouts = ConnectTimeouts {
    unreachable: Duration::from_secs(5),
    silent: Duration::from_secs(20),
};

/// The monitor of a QEMU that was attached to.
pub(crate) fn connected(client: &mut Option<Client>) -> Result<&mut Client, QmpError> {
    client.as_mut().ok_or_else(|| QmpError::Closed {
        doing: "a guest that it does not have yet, or no more".to_owned(),
    })
}

/// The monitor, connected to now if that was not done before. QEMU may wait for
/// a page, or may not have noticed yet that the program before is gone. Ends
/// early when `process` does, or once `give_up` is set.
pub(crate) fn get_or_connect<'a>(
    client: &'a mut Option<Client>,
    qmp: &Path,
    process: &Process,
    timeouts: ConnectTimeouts,
    give_up: &Cancel,
) -> Result<&'a mut Client, ConnectError> {
    let connected = match client.take() {
        Some(client) => client,
        None => connect(qmp, process, timeouts, give_up)?,
    };
    Ok(client.insert(connected))
}

fn connect(
    qmp: &Path,
    process: &Process,
    timeouts: ConnectTimeouts,
    give_up: &Cancel,
) -> Result<Client, ConnectError> {
    let begun = Instant::now();
    loop {
        let error = match Client::connect(qmp, GREETING_TIMEOUT) {
            // Whoever may write to the socket's folder can put another one there.
            Ok(client) if client.peer() == Some(process.pid()) => return Ok(client),
            Ok(client) => ConnectError::AnotherProcess {
                path: qmp.to_owned(),
                expected: process.pid(),
                found: client.peer().unwrap_or_default(),
            },
            Err(error) => error,
        };
        let timeouts = if error.is_silent() {
            timeouts.silent
        } else {
            timeouts.unreachable
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
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::thread;

    const SILENCE_ONLY: ConnectTimeouts = ConnectTimeouts {
        unreachable: Duration::ZERO,
        silent: NO_TIMEOUT,
    };

    /// Somebody who listens and says nothing, like a QEMU that waits for a page.
    #[test]
    fn silence_is_borne_until_somebody_gives_up_or_the_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = Arc::new(Process::open(child.id()).unwrap());
        let give_up = Cancel::new();
        let try_it = || {
            let (path, process) = (path.clone(), Arc::clone(&process));
            let give_up = give_up.clone();
            thread::spawn(move || connect(&path, &process, SILENCE_ONLY, &give_up).unwrap_err())
        };
        let first = try_it();
        thread::sleep(GREETING_TIMEOUT + GREETING_TIMEOUT);
        assert!(!first.is_finished(), "not given up");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(first.join().unwrap().is_silent());
        give_up.cancel();
        assert!(try_it().join().unwrap().is_silent());
    }

    #[test]
    fn another_process_behind_the_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 10}, "package": ""}, "capabilities": []}}"#;
            writeln!(stream, "{greeting}").unwrap();
            let mut heard = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                heard.push(line.unwrap());
                let _ = writeln!(stream, r#"{{"return": {{}}, "id": {}}}"#, heard.len());
            }
            heard
        });
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        let hurry = ConnectTimeouts {
            unreachable: Duration::ZERO,
            silent: Duration::ZERO,
        };
        let error = connect(&path, &process, hurry, &Cancel::new()).unwrap_err();
        let own = std::process::id();
        let is_it = matches!(error, ConnectError::AnotherProcess { expected, found, .. }
            if (expected, found) == (child.id(), own));
        assert!(is_it, "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
        // No more than that it may talk.
        let heard = server.join().unwrap();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].contains("qmp_capabilities"), "{heard:?}");
    }

    #[test]
    fn a_socket_that_is_not_there_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let own = Process::open(std::process::id()).unwrap();
        let path = folder.path().join("nothing");
        let error = connect(&path, &own, SILENCE_ONLY, &Cancel::new()).unwrap_err();
        assert!(!error.is_silent(), "{error}");
    }
}
