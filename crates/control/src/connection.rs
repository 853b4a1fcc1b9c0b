//! One connection of a client: it reads a request, and writes an answer. It never blocks.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::sockopt::socket_peercred;

use crate::key::Key;
use crate::message::{line, parse_request};
use crate::{Answer, Command, MAX_LINE, Outcome, RefusalReason, VERSION};

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    ends: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// What was read of the request.
    Reading(Vec<u8>),
    /// What is still to be written of the answer.
    Writing(Vec<u8>),
}

/// What the server does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Waits until it is readable or writable again.
    Wait,
    /// Closes it.
    Close,
}

impl Connection {
    /// A new connection, which may take this long. A client of another user is refused at once.
    pub(crate) fn new(stream: UnixStream, limit: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let state = match refusal(&stream) {
            None => State::Reading(Vec::new()),
            Some(refused) => State::Writing(answer(refused)),
        };
        Ok(Self {
            stream,
            ends: Instant::now() + limit,
            state,
        })
    }

    /// When it is closed at the latest.
    pub(crate) fn ends(&self) -> Instant {
        self.ends
    }

    /// What it waits for.
    pub(crate) fn waits_for(&self) -> PollFlags {
        match self.state {
            State::Reading(_) => PollFlags::IN,
            State::Writing(_) => PollFlags::OUT,
        }
    }

    /// Reads and writes as much as is possible now.
    pub(crate) fn advance(
        &mut self,
        key: &Key,
        handle: &mut dyn FnMut(Command) -> Outcome,
    ) -> Next {
        if let State::Reading(request) = &mut self.state {
            let outcome = match read(&mut self.stream, request) {
                ReadStep::More => return Next::Wait,
                ReadStep::Ended => return Next::Close,
                ReadStep::TooLong => Outcome::refused(
                    RefusalReason::Malformed,
                    format!("the request is longer than {MAX_LINE} bytes"),
                ),
                ReadStep::Line => outcome(request, key, handle),
            };
            self.state = State::Writing(answer(outcome));
        }
        let State::Writing(answer) = &mut self.state else {
            return Next::Wait;
        };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(0) => return Next::Close,
                Ok(bytes) => drop(answer.drain(..bytes)),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Next::Wait,
                    _ => return Next::Close,
                },
            }
        }
        Next::Close
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// What was read.
enum ReadStep {
    /// A whole line.
    Line,
    /// Not yet.
    More,
    /// More than a line may have.
    TooLong,
    /// The client has closed the connection, or it failed.
    Ended,
}

/// Reads up to a line.
fn read(stream: &mut UnixStream, request: &mut Vec<u8>) -> ReadStep {
    loop {
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(0) => return ReadStep::Ended,
            Ok(read) => {
                let read = bytes.get(..read).unwrap_or_default();
                let end = read.iter().position(|&byte| byte == b'\n');
                // One request is answered: what follows it is not read.
                let read = read.get(..end.unwrap_or(read.len())).unwrap_or_default();
                if request.len() + read.len() >= MAX_LINE {
                    return ReadStep::TooLong;
                }
                request.extend_from_slice(read);
                if end.is_some() {
                    return ReadStep::Line;
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => return ReadStep::More,
                _ => return ReadStep::Ended,
            },
        }
    }
}

/// What a request leads to.
fn outcome(request: &[u8], key: &Key, handle: &mut dyn FnMut(Command) -> Outcome) -> Outcome {
    match parse_request(request) {
        Ok(request) if key.is(&request.key) => handle(request.command),
        Ok(_) => Outcome::refused(
            RefusalReason::NotPermitted,
            "the request does not have the key of this socket",
        ),
        Err(refused) => refused,
    }
}

/// Refuses a client of another user than this process's, unless it is root's.
fn refusal(stream: &UnixStream) -> Option<Outcome> {
    let refused = |message| Some(Outcome::refused(RefusalReason::NotPermitted, message));
    match socket_peercred(stream) {
        Ok(peer) if peer.uid.is_root() || peer.uid == rustix::process::geteuid() => None,
        Ok(peer) => refused(format!(
            "user {} may not control a migration of user {}",
            peer.uid.as_raw(),
            rustix::process::geteuid().as_raw()
        )),
        Err(error) => refused(format!("it is not known which user has connected: {error}")),
    }
}

fn answer(outcome: Outcome) -> Vec<u8> {
    line(&Answer {
        version: VERSION,
        outcome,
    })
}
