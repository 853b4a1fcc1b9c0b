//! The Unix socket of a QMP session: sends lines and receives messages. Every wait
//! has a deadline.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hikkoshi_engine::CancelFlag;
use hikkoshi_linux::{Process, is_accepted};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials, sockopt::PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::error::QmpError;
use super::lines::{Lines, MAX_LINE};
use super::message::{Message, excerpt};

/// The longest time between two checks of the cancel flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A timeout of zero.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The most bytes for one read from the socket.
const READ: usize = 64 << 10;

/// A connected QMP socket.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    lines: Lines,
    cancel: Option<CancelFlag>,
    /// QEMU's process, if the socket is another program's.
    process: Option<Arc<Process>>,
}

impl Connection {
    /// Wraps a connected, non-blocking socket.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            lines: Lines::default(),
            cancel: None,
            process: None,
        }
    }

    /// Wraps the socket of a program that lends the monitor of `process`.
    pub(super) fn lent(stream: UnixStream, process: Arc<Process>) -> Self {
        Self {
            process: Some(process),
            ..Self::new(stream)
        }
    }

    /// Makes every wait end with [`QmpError::Cancelled`] once this flag is set.
    pub(super) fn set_cancel(&mut self, cancel: Option<CancelFlag>) {
        self.cancel = cancel;
    }

    /// Sends all of `line`, and the descriptor with its first byte.
    pub(super) fn send(
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

    /// Receives the next message.
    pub(super) fn receive(
        &mut self,
        doing: &str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Message, QmpError> {
        loop {
            let line = self.lines.next_line().map_err(|_too_long| {
                QmpError::unexpected(doing, format!("a line of more than {} bytes", MAX_LINE))
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
            if self.cancel.as_ref().is_some_and(CancelFlag::is_cancelled) {
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

    /// Whether the process of a socket has accepted the connection.
    pub(super) fn is_accepted(&self) -> bool {
        self.process.is_none() && is_accepted(&self.stream).unwrap_or(false)
    }

    /// See [`Client::peer`](super::Client::peer).
    pub(super) fn peer(&self) -> Option<u32> {
        if let Some(process) = &self.process {
            return Some(process.pid());
        }
        // Not rustix: its type for process numbers cannot represent 0, which the
        // kernel returns for a process that is not visible from here.
        let credentials = getsockopt(&self.stream, PeerCredentials).ok()?;
        u32::try_from(credentials.pid())
            .ok()
            .filter(|pid| *pid != 0)
    }

    /// See [`Client::peer_has_ended`](super::Client::peer_has_ended).
    pub(super) fn peer_has_ended(&self) -> bool {
        if let Some(process) = &self.process {
            return !process.is_alive();
        }
        match getsockopt(&self.stream, PeerPidfd) {
            Ok(pidfd) => {
                // A pidfd becomes readable when its process has ended.
                let mut set = [PollFd::new(&pidfd, PollFlags::IN)];
                matches!(poll(&mut set, Some(&NOW)), Ok(1..))
            }
            Err(error) => error != nix::errno::Errno::ENOPROTOOPT,
        }
    }
}

/// The time between two attempts to connect.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Connects, and returns a non-blocking stream.
///
/// `connect` on a Unix socket blocks while the listener's queue is full, and QEMU's
/// queue has space for one connection. So this uses a non-blocking socket and tries
/// until `deadline`. Then the error is [`io::ErrorKind::WouldBlock`].
pub(crate) fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    loop {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            Err(error) => return Err(error.into()),
        }
    }
}
