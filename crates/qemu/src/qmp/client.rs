//! The client: commands, answers, events, descriptors.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hikkoshi_engine::Cancel;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials, sockopt::PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Map, Value, json};

use super::connect::connect;
use super::error::{ConnectError, QmpError};
use super::lines::Lines;
use super::message::{Message, QmpEvent, Version, excerpt};

/// How long an ordinary command may take before QEMU counts as stuck. Ordinary
/// answers come in under a millisecond; a main loop busy with storage can take
/// seconds.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Most events kept until somebody asks for them; the oldest go first.
const MAX_EVENTS: usize = 1024;

/// Longest stretch without a look at the cancel flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Without waiting.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Bytes read from the socket at once.
const READ: usize = 64 << 10;

/// A QMP session.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: Lines,
    version: Version,
    next_id: u64,
    events: VecDeque<QmpEvent>,
    timeout: Duration,
    cancel: Option<Cancel>,
}

impl Client {
    /// Connects to QEMU's QMP socket and opens the session. `timeout` bounds
    /// the whole of it.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, ConnectError> {
        let no_greeting = || ConnectError::NoGreeting {
            path: path.to_owned(),
            after: timeout,
        };
        let deadline = Instant::now() + timeout;
        let stream = connect(path, deadline).map_err(|source| {
            if source.kind() == io::ErrorKind::WouldBlock {
                no_greeting()
            } else {
                ConnectError::Connect {
                    path: path.to_owned(),
                    source,
                }
            }
        })?;
        let mut client = Self {
            stream,
            lines: Lines::default(),
            version: Version::new(0, 0, 0),
            next_id: 1,
            events: VecDeque::new(),
            timeout: COMMAND_TIMEOUT,
            cancel: None,
        };
        client.version = client
            .greeting(deadline, timeout)
            .map_err(|error| match error {
                QmpError::TimedOut { .. } => no_greeting(),
                QmpError::Unexpected { what, .. } => ConnectError::NotQmp {
                    path: path.to_owned(),
                    what,
                },
                source => ConnectError::Session {
                    path: path.to_owned(),
                    source,
                },
            })?;
        client
            .execute("qmp_capabilities", json!({}))
            .map_err(|source| ConnectError::Session {
                path: path.to_owned(),
                source,
            })?;
        Ok(client)
    }

    /// QEMU's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The process that listens on the socket: QEMU, unless something else
    /// opened the socket for it. `None` when the kernel does not say, as when
    /// the process is in a PID namespace that we do not see.
    pub fn peer(&self) -> Option<u32> {
        // Not rustix: its type for process numbers cannot hold the 0 that the
        // kernel gives for a process out of our sight.
        let credentials = getsockopt(&self.stream, PeerCredentials).ok()?;
        u32::try_from(credentials.pid())
            .ok()
            .filter(|pid| *pid != 0)
    }

    /// Whether the process of [`peer`](Self::peer) has ended: then its number may
    /// be another process's by now. `false` where the kernel cannot tell (before
    /// Linux 6.5).
    ///
    /// A process that was started by the peer can have the socket still, and
    /// answer. So ask after the process was held by its number.
    pub fn peer_has_ended(&self) -> bool {
        match getsockopt(&self.stream, PeerPidfd) {
            Ok(pidfd) => {
                // A pidfd becomes readable when its process has ended.
                let mut set = [PollFd::new(&pidfd, PollFlags::IN)];
                matches!(poll(&mut set, Some(&NOW)), Ok(1..))
            }
            Err(error) => error != nix::errno::Errno::ENOPROTOOPT,
        }
    }

    /// Makes every wait end early, with [`QmpError::Cancelled`], once this flag
    /// is set; `None` makes waits run their full time again.
    pub(crate) fn set_cancel(&mut self, cancel: Option<Cancel>) {
        self.cancel = cancel;
    }

    /// How long [`Self::execute`] waits from now on.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Runs a command and gives what it returns. Events that come meanwhile
    /// are kept for [`Self::wait_event`].
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let timeout = self.timeout;
        self.run(command, arguments, None, Instant::now() + timeout, timeout)
    }

    /// As [`Self::execute`], with another time limit.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn execute_within(
        &mut self,
        command: &str,
        arguments: Value,
        timeout: Duration,
    ) -> Result<Value, QmpError> {
        self.run(command, arguments, None, Instant::now() + timeout, timeout)
    }

    /// Gives QEMU a copy of `fd`, to be named `name` in later commands.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn send_fd(&mut self, name: &str, fd: BorrowedFd<'_>) -> Result<(), QmpError> {
        let timeout = self.timeout;
        let deadline = Instant::now() + timeout;
        self.run(
            "getfd",
            json!({ "fdname": name }),
            Some(fd),
            deadline,
            timeout,
        )
        .map(drop)
    }

    /// QEMU's first words. An event can overtake them: until it greets, QEMU
    /// goes on sending what the session before this one had asked for. Such
    /// events are not this session's.
    fn greeting(&mut self, deadline: Instant, timeout: Duration) -> Result<Version, QmpError> {
        const DOING: &str = "its greeting";
        loop {
            match self.receive(DOING, deadline, timeout)? {
                Message::Greeting(version) => return Ok(version),
                Message::Event(event) if Instant::now() < deadline => {
                    tracing::debug!(name = event.name, "QMP event before the greeting");
                }
                Message::Event(_) => {
                    return Err(QmpError::TimedOut {
                        doing: DOING.to_owned(),
                        after: timeout,
                    });
                }
                Message::Return { .. } | Message::Error { .. } => {
                    return Err(QmpError::unexpected(
                        DOING,
                        "an answer came before the greeting",
                    ));
                }
            }
        }
    }

    fn run(
        &mut self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Value, QmpError> {
        let id = self.next_id;
        self.next_id += 1;
        // Short: QEMU reads QMP a byte at a time, some 7 µs each (measured), and
        // some commands are sent while the guest is stopped.
        let mut line = if arguments.as_object().is_some_and(Map::is_empty) {
            json!({ "execute": command, "id": id })
        } else {
            json!({ "execute": command, "arguments": arguments, "id": id })
        }
        .to_string();
        line.push('\n');
        tracing::trace!(command, id, "QMP");
        self.send(command, line.as_bytes(), fd, deadline, timeout)?;
        loop {
            match self.receive(command, deadline, timeout)? {
                Message::Event(event) => self.keep(event),
                Message::Return {
                    id: Some(got),
                    value,
                } if got == id => return Ok(value),
                Message::Error {
                    id: got,
                    class,
                    description,
                } if got.is_none_or(|got| got == id) => {
                    return Err(QmpError::Refused {
                        command: command.to_owned(),
                        class,
                        description,
                    });
                }
                // The late answer to a command we had given up on.
                Message::Return { id: Some(got), .. } | Message::Error { id: Some(got), .. }
                    if got < id => {}
                other => {
                    return Err(QmpError::unexpected(
                        command,
                        format!("unexpected {other:?}"),
                    ));
                }
            }
        }
    }

    /// The first event, of those kept and those to come, for which `want` gives
    /// something. The others before it are dropped.
    ///
    /// `None` when none has come by `deadline`.
    ///
    /// # Errors
    ///
    /// See [`QmpError`]; never [`QmpError::TimedOut`].
    pub fn wait_event<T>(
        &mut self,
        doing: &str,
        deadline: Instant,
        mut want: impl FnMut(&QmpEvent) -> Option<T>,
    ) -> Result<Option<T>, QmpError> {
        loop {
            while let Some(event) = self.events.pop_front() {
                if let Some(found) = want(&event) {
                    return Ok(Some(found));
                }
            }
            match self.receive(doing, deadline, Duration::ZERO) {
                Ok(Message::Event(event)) => self.keep(event),
                // A late answer; nobody waits for it.
                Ok(Message::Return { .. } | Message::Error { .. }) => {}
                Ok(Message::Greeting(_)) => {
                    return Err(QmpError::unexpected(doing, "a second greeting"));
                }
                Err(QmpError::TimedOut { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops the events that have come so far, so that a wait does not see
    /// what happened earlier.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Whether such an event has come since they were last forgotten or waited
    /// for.
    pub(crate) fn has_event(&self, name: &str) -> bool {
        self.events.iter().any(|event| event.name == name)
    }

    fn keep(&mut self, event: QmpEvent) {
        tracing::debug!(name = event.name, data = %event.data, "QMP event");
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Sends all of `line`; the descriptor goes with its first byte.
    fn send(
        &mut self,
        doing: &str,
        line: &[u8],
        fd: Option<BorrowedFd<'_>>,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(), QmpError> {
        let mut rest = line;
        let mut fd = fd;
        while !rest.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(QmpError::Socket {
                    doing: doing.to_owned(),
                    source: io::ErrorKind::InvalidInput.into(),
                });
            }
            let sent = sendmsg(
                &self.stream,
                &[IoSlice::new(rest)],
                &mut control,
                SendFlags::NOSIGNAL,
            );
            match sent {
                Ok(sent) => {
                    rest = rest.get(sent..).unwrap_or_default();
                    fd = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(doing, PollFlags::OUT, deadline, timeout)?,
                Err(error) => {
                    return Err(QmpError::Socket {
                        doing: doing.to_owned(),
                        source: error.into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The next message, whichever it is.
    fn receive(
        &mut self,
        doing: &str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Message, QmpError> {
        loop {
            let line = self.lines.next_line().map_err(|_too_long| {
                QmpError::unexpected(
                    doing,
                    format!("a line of more than {} bytes", super::MAX_LINE),
                )
            })?;
            if let Some(line) = line {
                tracing::trace!(line = excerpt(&line), "QMP");
                return Message::parse(&line).map_err(|what| QmpError::unexpected(doing, what));
            }
            let mut buffer = [0; READ];
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    return Err(QmpError::Closed {
                        doing: doing.to_owned(),
                    });
                }
                Ok(read) => self.lines.push(buffer.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(doing, PollFlags::IN, deadline, timeout)?;
                }
                Err(source) => {
                    return Err(QmpError::Socket {
                        doing: doing.to_owned(),
                        source,
                    });
                }
            }
        }
    }

    /// Waits until the socket is ready.
    fn wait(
        &self,
        doing: &str,
        flags: PollFlags,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<(), QmpError> {
        loop {
            if self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                return Err(QmpError::Cancelled {
                    doing: doing.to_owned(),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(QmpError::TimedOut {
                    doing: doing.to_owned(),
                    after: timeout,
                });
            }
            let slice = if self.cancel.is_some() {
                left.min(POLL_INTERVAL)
            } else {
                left
            };
            let slice = Timespec {
                tv_sec: i64::try_from(slice.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(slice.subsec_nanos()),
            };
            let mut set = [PollFd::new(&self.stream, flags)];
            match poll(&mut set, Some(&slice)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => {
                    return Err(QmpError::Socket {
                        doing: doing.to_owned(),
                        source: error.into(),
                    });
                }
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
