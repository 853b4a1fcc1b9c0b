//! Follows a migration of another process.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hikkoshi_linux::connect_unix;

use crate::folder::{ParseError, parse};
use crate::{MAX_LINE, StatusRecord, VERSION};

/// The records of an engine, as they come.
#[derive(Debug)]
pub struct Follow {
    socket: PathBuf,
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
    /// The first record was read.
    begun: bool,
}

/// A status socket cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Connecting to it or reading from it failed.
    #[error("reading the status of a migration from {}", socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        #[source]
        cause: io::Error,
    },
    /// A line that is not a record.
    #[error("{} sent a line that is not a status record: {problem}", socket.display())]
    Record {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An engine of another version.
    #[error(
        "the engine at {} has version {version} of the status, and this hikkoshi reads version \
         {VERSION}",
        socket.display()
    )]
    Version {
        /// The socket.
        socket: PathBuf,
        /// Its version.
        version: u64,
    },
}

impl FollowError {
    /// Whether no engine serves the socket: it has ended, or was killed.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if matches!(
            cause.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        ))
    }

    /// Whether an engine serves the socket, and has accepted or sent nothing in time.
    pub fn has_timed_out(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if matches!(
            cause.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    }
}

impl Follow {
    /// Connects to an engine's socket. Reading fails after `timeout` without a record.
    ///
    /// # Errors
    /// If it cannot be connected to now: it never waits for an engine that accepts no connections.
    pub fn open(socket: &Path, timeout: Duration) -> Result<Self, FollowError> {
        let opened = connect_unix(socket).and_then(|stream| {
            stream.set_read_timeout(Some(timeout))?;
            Ok(stream)
        });
        let stream = opened.map_err(|cause| FollowError::Io {
            socket: socket.to_owned(),
            cause,
        })?;
        Ok(Self {
            socket: socket.to_owned(),
            reader: BufReader::new(stream),
            line: Vec::new(),
            begun: false,
        })
    }

    /// The next record: first a [`StatusRecord::Recording`]. `None`: the engine has closed the
    /// socket; without a [`StatusRecord::End`] before, it was killed. Kinds of records that this
    /// version does not know are left out.
    ///
    /// # Errors
    /// If reading fails or times out, or a line is not a record.
    #[allow(clippy::should_implement_trait)] // An iterator would continue after an error.
    pub fn next(&mut self) -> Result<Option<StatusRecord>, FollowError> {
        loop {
            self.line.clear();
            let mut limited = (&mut self.reader).take(MAX_LINE as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.line);
            let read = read.map_err(|cause| FollowError::Io {
                socket: self.socket.clone(),
                cause,
            })?;
            if read == 0 {
                return Ok(None);
            }
            if self.line.last() != Some(&b'\n') {
                if self.line.len() > MAX_LINE {
                    return Err(self.bad(format!("it is longer than {MAX_LINE} bytes")));
                }
                // The engine was killed while it wrote.
                return Ok(None);
            }
            if let Some(record) = self.parse()? {
                self.begun = true;
                return Ok(Some(record));
            }
        }
    }

    fn parse(&self) -> Result<Option<StatusRecord>, FollowError> {
        // One member, whose name says what it is.
        let members: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&self.line).map_err(|error| self.bad(error))?;
        if !self.begun {
            let Some(recording) = members.get("recording") else {
                return Err(self.bad("the first one is not a recording"));
            };
            let recording = serde_json::to_vec(recording).map_err(|error| self.bad(error))?;
            return match parse(&recording) {
                Ok(recording) => Ok(Some(StatusRecord::Recording(Box::new(recording)))),
                Err(ParseError::Version(version)) => Err(FollowError::Version {
                    socket: self.socket.clone(),
                    version,
                }),
                Err(ParseError::Json(error)) => Err(self.bad(error)),
            };
        }
        let known = ["recording", "state", "notice", "end"];
        if !known.iter().any(|name| members.contains_key(*name)) {
            return Ok(None);
        }
        serde_json::from_value(members.into())
            .map(Some)
            .map_err(|error| self.bad(error))
    }

    fn bad(&self, problem: impl ToString) -> FollowError {
        FollowError::Record {
            socket: self.socket.clone(),
            problem: problem.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::examples::{migration, state};
    use crate::{End, Recorder, StatusFolder, StatusServer};
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    fn end() -> End {
        End {
            at_ms: 1000,
            exit_status: 1,
            reason: "cancelled".into(),
            message: "cancelled".into(),
            next: Some("the guest still runs at the source".into()),
            account: None,
        }
    }

    #[test]
    fn a_client_gets_what_was_recorded_and_then_what_happens() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        let mut recorder = Recorder::new(migration());
        recorder.add(state(0));
        let mut server = StatusServer::start(&folder, &recorder).unwrap();
        let [entry] = &folder.entries().unwrap()[..] else {
            panic!("one socket");
        };
        let mut follow = Follow::open(&entry.path, LONG).unwrap();
        server.accept(&recorder);
        let first = follow.next().unwrap().unwrap();
        assert_eq!(
            first,
            StatusRecord::Recording(Box::new(recorder.recording().clone()))
        );
        for record in [
            StatusRecord::State(Box::new(state(100))),
            StatusRecord::Notice(recorder.notice(150, "a notice")),
            StatusRecord::End(end()),
        ] {
            server.publish(&record);
            assert_eq!(follow.next().unwrap(), Some(record));
        }
        server.finish();
        assert_eq!(follow.next().unwrap(), None);
        assert_eq!(folder.entries().unwrap(), []);
        let gone = Follow::open(&entry.path, LONG).unwrap_err();
        assert!(gone.has_ended(), "{gone}");
    }

    #[test]
    fn a_client_that_does_not_read_loses_states_only() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        let mut recorder = Recorder::new(migration());
        let mut server = StatusServer::start(&folder, &recorder).unwrap();
        let path = folder.entries().unwrap().remove(0).path;
        let mut follow = Follow::open(&path, LONG).unwrap();
        server.accept(&recorder);
        let mut large = state(0);
        large.map.sent = vec![1_000_000; crate::MAX_CELLS];
        let states = 2000;
        for number in 0..states {
            large.at_ms = number;
            server.publish(&StatusRecord::State(Box::new(large.clone())));
        }
        server.publish(&StatusRecord::Notice(recorder.notice(1, "last")));
        server.publish(&StatusRecord::End(end()));
        // What it has not accepted is bounded.
        assert!(server.pending() < 64 << 10);
        let reader = thread::spawn(move || {
            let mut got = Vec::new();
            while let Some(record) = follow.next().unwrap() {
                got.push(record);
            }
            got
        });
        server.finish();
        let got = reader.join().unwrap();
        assert!(
            got.len() < usize::try_from(states).unwrap(),
            "{}",
            got.len()
        );
        assert!(matches!(got[got.len() - 2], StatusRecord::Notice(_)));
        assert!(matches!(got[got.len() - 1], StatusRecord::End(_)));
    }

    #[test]
    fn a_client_that_reads_no_notices_is_disconnected() {
        let run = tempfile::tempdir().unwrap();
        let folder = StatusFolder::in_run_folder(run.path());
        let mut recorder = Recorder::new(migration());
        let mut server = StatusServer::start(&folder, &recorder).unwrap();
        let path = folder.entries().unwrap().remove(0).path;
        let _follow = Follow::open(&path, LONG).unwrap();
        server.accept(&recorder);
        let mut most = 0;
        for at_ms in 0..20_000 {
            server.publish(&StatusRecord::Notice(
                recorder.notice(at_ms, &"x".repeat(4000)),
            ));
            most = most.max(server.pending());
        }
        assert_eq!(server.pending(), 0, "it is gone");
        assert!((1 << 20..8 << 20).contains(&most), "{most}");
    }

    /// What a socket sends, and what the client makes of it.
    fn received(lines: &'static [u8]) -> Vec<Result<Option<StatusRecord>, FollowError>> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(lines);
        });
        let mut follow = Follow::open(&socket, LONG).unwrap();
        let mut all = Vec::new();
        loop {
            let next = follow.next();
            let over = !matches!(next, Ok(Some(_)));
            all.push(next);
            if over {
                break;
            }
        }
        server.join().unwrap();
        all
    }

    #[test]
    fn lines_that_are_not_records_are_refused() {
        let last = |lines| received(lines).pop().unwrap();
        assert!(matches!(last(b""), Ok(None)));
        for bad in [&b"{}\n"[..], b"[]\n", b"\xff\n", b"{\"state\":{}}\n"] {
            let error = last(bad).unwrap_err();
            assert!(matches!(error, FollowError::Record { .. }), "{error}");
        }
        let other = last(b"{\"recording\":{\"version\":7}}\n").unwrap_err();
        assert!(other.to_string().contains("version 7"), "{other}");
    }

    #[test]
    fn unknown_records_are_left_out() {
        let recorder = Recorder::new(migration());
        let first = StatusRecord::Recording(Box::new(recorder.recording().clone()));
        let mut lines = serde_json::to_vec(&first).unwrap();
        lines.extend_from_slice(
            b"\n{\"later\":1}\n{\"notice\":{\"at_ms\":1,\"text\":\"a\"}}\n{\"not",
        );
        let got = received(lines.leak());
        assert_eq!(got.len(), 3);
        assert!(matches!(got[1], Ok(Some(StatusRecord::Notice(_)))));
        assert!(matches!(got[2], Ok(None)), "the engine was killed");
    }
}
