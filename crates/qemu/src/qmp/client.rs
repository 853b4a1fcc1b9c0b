//! The QMP client: commands, answers, events, descriptors.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::Process;
use serde_json::{Map, Value, json};

use super::address::MonitorAddress;
use super::connection::{Connection, connect};
use super::error::{ConnectError, QmpError};
use super::message::{Message, QmpEvent, Version};

/// How long to wait for a connection, up to QEMU's greeting.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of an ordinary command. Most answers come within a millisecond; a main
/// loop that waits for storage can take seconds.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of a command that may wait for the destination of a disk that is being copied. A
/// connection that stalls is ended after `--stall-timeout`, at most an hour: this only ends a wait
/// for something else.
pub(crate) const WATCHED_TIMEOUT: Duration = Duration::from_secs(2 * 3600);

/// The most events that are kept. If there are more, the oldest are dropped.
const MAX_EVENTS: usize = 1024;

/// A QMP session.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    version: Version,
    next_id: u64,
    events: VecDeque<QmpEvent>,
    timeout: Duration,
}

/// A command that was sent, and whose answer was not received yet.
#[derive(Debug)]
pub(crate) struct Submitted {
    command: &'static str,
    id: u64,
}

/// A command as a line.
fn encode(command: &str, arguments: Value, id: u64) -> String {
    // Short: QEMU reads QMP byte by byte, about 7 µs each (measured), and
    // some commands are sent while the guest is paused.
    let mut line = if arguments.as_object().is_some_and(Map::is_empty) {
        json!({ "execute": command, "id": id })
    } else {
        json!({ "execute": command, "arguments": arguments, "id": id })
    }
    .to_string();
    line.push('\n');
    tracing::trace!(command, id, "QMP");
    line
}

impl Client {
    /// Connects to QEMU's QMP socket and opens the session, within `timeout` in
    /// total.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, ConnectError> {
        Self::connect_by(path, &MonitorAddress::Socket(path.to_owned()), timeout)
    }

    /// Like [`Self::connect`], by another path than errors name.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect_by(
        path: &Path,
        monitor: &MonitorAddress,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + timeout;
        let stream = connect(path, deadline).map_err(|source| {
            let monitor = Box::new(monitor.clone());
            if source.kind() == io::ErrorKind::WouldBlock {
                ConnectError::NoGreeting {
                    monitor,
                    after: timeout,
                    accepted: false,
                }
            } else {
                ConnectError::Connect { monitor, source }
            }
        })?;
        Self::open(Connection::new(stream), monitor, deadline, timeout)
    }

    /// Opens a session on a monitor that another program owns and lends: that program greets and
    /// answers on `stream` as QEMU does on its socket. `monitor` names the monitor in errors, and
    /// `process` is QEMU's. The time limit is `timeout` in total.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn over(
        stream: UnixStream,
        monitor: &MonitorAddress,
        process: Arc<Process>,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let deadline = Instant::now() + timeout;
        stream
            .set_nonblocking(true)
            .map_err(|source| ConnectError::Connect {
                monitor: Box::new(monitor.clone()),
                source,
            })?;
        let connection = Connection::lent(stream, process);
        Self::open(connection, monitor, deadline, timeout)
    }

    fn open(
        connection: Connection,
        monitor: &MonitorAddress,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let mut client = Self {
            connection,
            version: Version::new(0, 0, 0),
            next_id: 1,
            events: VecDeque::new(),
            timeout: COMMAND_TIMEOUT,
        };
        client.version = client
            .greeting(deadline, timeout)
            .map_err(|error| match error {
                QmpError::TimedOut { .. } => ConnectError::NoGreeting {
                    monitor: Box::new(monitor.clone()),
                    after: timeout,
                    accepted: client.connection.is_accepted(),
                },
                QmpError::Unexpected { what, .. } => ConnectError::NotQmp {
                    monitor: Box::new(monitor.clone()),
                    what,
                },
                source => ConnectError::Session {
                    monitor: Box::new(monitor.clone()),
                    source,
                },
            })?;
        client
            .execute("qmp_capabilities", json!({}))
            .map_err(|source| ConnectError::Session {
                monitor: Box::new(monitor.clone()),
                source,
            })?;
        Ok(client)
    }

    /// QEMU's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The process that listens on the socket: QEMU, unless another program
    /// opened the socket for it. Of a monitor that is lent: QEMU. `None` if the
    /// kernel does not say, for example because the process is in a PID namespace
    /// that is not visible from here.
    pub fn peer(&self) -> Option<u32> {
        self.connection.peer()
    }

    /// Whether the process of [`peer`](Self::peer) has ended, so that its number
    /// may now belong to another process. `false` where the kernel cannot tell
    /// (before Linux 6.5).
    ///
    /// A child of that process can still hold the socket and answer. So call
    /// this after opening a pidfd of the process.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.connection.peer_has_ended()
    }

    /// Makes every wait end early, with [`QmpError::Cancelled`], once this flag
    /// is set. `None` removes the flag.
    pub(crate) fn set_cancel(&mut self, cancel: Option<CancelFlag>) {
        self.connection.set_cancel(cancel);
    }

    /// Sets the timeout of [`Self::execute`].
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Runs a command and returns its result. Keeps events that come meanwhile for
    /// [`Self::wait_event`].
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let timeout = self.timeout;
        self.run(command, arguments, None, Instant::now() + timeout, timeout)
    }

    /// Like [`Self::execute`], with another timeout.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub(crate) fn execute_within(
        &mut self,
        command: &str,
        arguments: Value,
        timeout: Duration,
    ) -> Result<Value, QmpError> {
        self.run(command, arguments, None, Instant::now() + timeout, timeout)
    }

    /// Like [`Self::execute`], and sends QEMU a copy of `fd` along.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub fn execute_with_fd(
        &mut self,
        command: &str,
        arguments: Value,
        fd: BorrowedFd<'_>,
    ) -> Result<Value, QmpError> {
        let timeout = self.timeout;
        let deadline = Instant::now() + timeout;
        self.run(command, arguments, Some(fd), deadline, timeout)
    }

    /// Sends several commands at once. QEMU executes them one after the other, and reads the later
    /// ones while it executes the first. Take the answers in the same order
    /// ([`Self::answer`]), with no other command in between.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub(crate) fn submit<const N: usize>(
        &mut self,
        commands: [(&'static str, Value); N],
    ) -> Result<[Submitted; N], QmpError> {
        let mut lines = String::new();
        let submitted = commands.map(|(command, arguments)| {
            let id = self.take_id();
            lines.push_str(&encode(command, arguments, id));
            Submitted { command, id }
        });
        let (timeout, doing) = (self.timeout, submitted.first().map_or("", |s| s.command));
        let deadline = Instant::now() + timeout;
        self.connection
            .send(doing, lines.as_bytes(), None, deadline, timeout)?;
        Ok(submitted)
    }

    /// Waits for the answer to a submitted command.
    ///
    /// # Errors
    ///
    /// See [`QmpError`].
    pub(crate) fn answer(&mut self, submitted: &Submitted) -> Result<Value, QmpError> {
        let timeout = self.timeout;
        let deadline = Instant::now() + timeout;
        self.receive_answer(submitted.command, submitted.id, deadline, timeout)
    }

    /// Receives QEMU's greeting. An event can precede it: until it greets, QEMU
    /// still sends events of the previous session. They are dropped.
    fn greeting(&mut self, deadline: Instant, timeout: Duration) -> Result<Version, QmpError> {
        const DOING: &str = "its greeting";
        loop {
            match self.connection.receive(DOING, deadline, timeout)? {
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
        let id = self.take_id();
        let line = encode(command, arguments, id);
        self.connection
            .send(command, line.as_bytes(), fd, deadline, timeout)?;
        self.receive_answer(command, id, deadline, timeout)
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn receive_answer(
        &mut self,
        command: &str,
        id: u64,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Value, QmpError> {
        loop {
            match self.connection.receive(command, deadline, timeout)? {
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
                // The late answer to a command that timed out.
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

    /// Waits for the first event, kept or new, for which `want` returns a value.
    /// Drops the events before it.
    ///
    /// `None` if there is none by `deadline`.
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
            match self.connection.receive(doing, deadline, Duration::ZERO) {
                Ok(Message::Event(event)) => self.keep(event),
                // A late answer.
                Ok(Message::Return { .. } | Message::Error { .. }) => {}
                Ok(Message::Greeting(_)) => {
                    return Err(QmpError::unexpected(doing, "a second greeting"));
                }
                Err(QmpError::TimedOut { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The first event of this name among those that have come so far.
    pub(crate) fn take_event(&mut self, name: &str) -> Option<QmpEvent> {
        let at = self.events.iter().position(|event| event.name == name)?;
        self.events.remove(at)
    }

    /// What `want` returns of the first event, among those that have come so far, for which it
    /// returns a value.
    pub(crate) fn find_event<T>(&self, want: impl FnMut(&QmpEvent) -> Option<T>) -> Option<T> {
        self.events.iter().find_map(want)
    }

    /// Drops the events that have come so far, so that a wait sees only later ones.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Events that have come since events were last dropped or waited for, oldest first.
    pub(super) fn queued_events(&self) -> impl Iterator<Item = &QmpEvent> {
        self.events.iter()
    }

    /// Whether an event of this name has come since events were last dropped or
    /// waited for.
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
}
