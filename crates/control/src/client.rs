//! Sends a request to the engine of another process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use hikkoshi_linux::connect_unix;
use serde::de::DeserializeOwned;

use crate::folder::{ControlFolder, ControlFolderError};
use crate::key::Key;
use crate::message::{Versioned, line};
use crate::{Answer, Command, MAX_LINE, Outcome, Request, VERSION};

/// A request cannot be sent, or is not answered.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] ControlFolderError),
    /// Connecting, writing or reading failed.
    #[error("asking the migration at {}", socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// What was read is not an answer.
    #[error("the engine at {} has sent something that is not an answer: {problem}", socket.display())]
    Answer {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The engine has another version.
    #[error(
        "the engine at {} answers with version {version}, and this hikkoshi has version {VERSION}",
        socket.display()
    )]
    Version {
        /// The socket.
        socket: PathBuf,
        /// Its version.
        version: u64,
    },
}

impl SendError {
    /// Whether no engine serves the socket: it has ended or was killed, or it is too old to have
    /// one.
    pub fn has_ended(&self) -> bool {
        let cause = match self {
            Self::Io { cause, .. } | Self::Folder(ControlFolderError::Io { cause, .. }) => cause,
            _ => return false,
        };
        matches!(
            cause.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        )
    }

    /// Whether an engine serves the socket, and has not answered in time.
    pub fn has_timed_out(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if matches!(
            cause.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    }
}

/// Sends a command to the migration with this name. Each step may take `timeout`.
///
/// # Errors
/// If there is no answer. It is not known then whether the command was executed.
pub fn send(
    folder: &ControlFolder,
    name: &str,
    command: Command,
    timeout: Duration,
) -> Result<Outcome, SendError> {
    folder.check()?;
    let socket = folder.socket(name);
    let failed = |cause| SendError::Io {
        socket: socket.clone(),
        cause,
    };
    let key = Key::read(&folder.key(name)).map_err(failed)?;
    let request = Request {
        version: VERSION,
        key: key.text().to_owned(),
        command,
    };
    let mut stream = connect_unix(&socket).map_err(failed)?;
    let mut answer = Vec::new();
    stream
        .set_read_timeout(Some(timeout))
        .and_then(|()| stream.set_write_timeout(Some(timeout)))
        .and_then(|()| stream.write_all(&line(&request)))
        .and_then(|()| {
            let mut limited = BufReader::new(&stream).take(MAX_LINE as u64);
            limited.read_until(b'\n', &mut answer)
        })
        .map_err(failed)?;
    let bad = |problem: String| SendError::Answer {
        socket: socket.clone(),
        problem,
    };
    if answer.last() != Some(&b'\n') {
        return Err(bad("it is not a whole line".to_owned()));
    }
    // Its version comes first: the rest of another version may be anything.
    let Versioned { version } = from_json(&answer).map_err(bad)?;
    if version != u64::from(VERSION) {
        return Err(SendError::Version { socket, version });
    }
    let answer: Answer = from_json(&answer).map_err(bad)?;
    Ok(answer.outcome)
}

fn from_json<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    /// What a client makes of these bytes.
    fn received(bytes: &'static [u8]) -> Result<Outcome, SendError> {
        let run = tempfile::tempdir().unwrap();
        let folder = ControlFolder::in_run_folder(run.path());
        folder.create().unwrap();
        Key::create(&folder.key("a")).unwrap();
        let listener = UnixListener::bind(folder.socket("a")).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream)
                .read_until(b'\n', &mut Vec::new())
                .unwrap();
            let _ = stream.write_all(bytes);
        });
        let answer = send(&folder, "a", Command::Switch, Duration::from_secs(60));
        server.join().unwrap();
        answer
    }

    #[test]
    fn answers_that_are_not_answers_are_reported() {
        let switching = b"{\"version\":1,\"outcome\":\"switching\",\"later\":1}\n";
        assert_eq!(received(switching).unwrap(), Outcome::Switching);
        for bad in [&b""[..], b"{}", b"{}\n", b"\xff\n", &[b' '; 2 * MAX_LINE]] {
            let error = received(bad).unwrap_err();
            assert!(matches!(error, SendError::Answer { .. }), "{error}");
        }
        let other = b"{\"version\":2,\"anything\":[]}\n";
        let error = received(other).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }

    #[test]
    fn an_engine_that_does_not_answer_has_not_ended() {
        let run = tempfile::tempdir().unwrap();
        let folder = ControlFolder::in_run_folder(run.path());
        folder.create().unwrap();
        Key::create(&folder.key("a")).unwrap();
        let _listener = UnixListener::bind(folder.socket("a")).unwrap();
        let error = send(&folder, "a", Command::Cancel, Duration::from_millis(10)).unwrap_err();
        assert!(error.has_timed_out() && !error.has_ended(), "{error}");
    }

    #[test]
    fn a_migration_without_a_socket_has_ended() {
        let run = tempfile::tempdir().unwrap();
        let folder = ControlFolder::in_run_folder(run.path());
        let asked = || send(&folder, "a", Command::Cancel, Duration::from_secs(60));
        assert!(asked().unwrap_err().has_ended(), "no folder");
        folder.create().unwrap();
        assert!(asked().unwrap_err().has_ended(), "no key");
        Key::create(&folder.key("a")).unwrap();
        drop(UnixListener::bind(folder.socket("a")).unwrap());
        assert!(asked().unwrap_err().has_ended(), "killed");
    }
}
