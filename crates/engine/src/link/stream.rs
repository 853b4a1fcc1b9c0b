//! A connected socket of either family, shared by its reader and its writer.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hikkoshi_faults::{TcpInfo, set_pace};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{SockRef, TcpKeepalive};

use super::{Address, Mark};

/// How long a peer may leave sent bytes unacknowledged before the link counts
/// as broken (`TCP_USER_TIMEOUT`, RFC 5482).
pub const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected stream socket. Reading and writing take `&self`: one thread
/// reads, one thread writes.
#[derive(Debug)]
pub enum Stream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A unix stream connection.
    Unix(UnixStream),
}

impl Stream {
    /// Connects to `address`, trying each of its socket addresses in turn.
    ///
    /// # Errors
    /// The last attempt's error.
    pub fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path)?)),
            Address::Tcp(_) => {
                let found = address.resolve().map_err(io::Error::other)?;
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for socket_address in found {
                    match TcpStream::connect_timeout(&socket_address, CONNECT_TIMEOUT) {
                        Ok(stream) => return Self::tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Takes over an accepted or connected TCP socket: no Nagle delay, and a
    /// silently dead peer is noticed.
    ///
    /// # Errors
    /// What `setsockopt` says.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_user_timeout(Some(PEER_TIMEOUT))?;
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(PEER_TIMEOUT / 4)
                .with_interval(PEER_TIMEOUT / 8)
                .with_retries(4),
        )?;
        Ok(Self::Tcp(stream))
    }

    /// Bounds every later `read` and `write` call; `None`: they wait for ever.
    ///
    /// # Errors
    /// What `setsockopt` says.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s
                .set_read_timeout(timeout)
                .and_then(|()| s.set_write_timeout(timeout)),
            Self::Unix(s) => s
                .set_read_timeout(timeout)
                .and_then(|()| s.set_write_timeout(timeout)),
        }
    }

    /// Ends the connection in both directions; whoever is blocked on it wakes.
    pub fn shutdown(&self) {
        // An error means that it is over already, which is what was wanted.
        let _ = match self {
            Self::Tcp(s) => s.shutdown(Shutdown::Both),
            Self::Unix(s) => s.shutdown(Shutdown::Both),
        };
    }

    /// How the connection fares; `None` when it is not TCP, or the kernel does
    /// not tell.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        match self {
            Self::Tcp(s) => TcpInfo::get(s).ok(),
            Self::Unix(_) => None,
        }
    }

    /// Lets the kernel send no more than so many bytes a second; `None`: as
    /// fast as it goes. Of no consequence where it cannot.
    pub fn set_pace(&self, bytes_per_second: Option<f64>) {
        // Positive, and `as` saturates.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let pace = bytes_per_second.map_or(u64::MAX, |rate| rate as u64);
        if let Self::Tcp(s) = self
            && let Err(error) = set_pace(s, pace)
        {
            tracing::debug!(%error, pace, "no pace");
        }
    }

    /// Writes `pieces` in a packet of their own (`MSG_EOR`): the kernel would
    /// otherwise join what waits for its turn to packets of 64 KiB, and it
    /// sends a packet at once, whatever the pace.
    ///
    /// # Errors
    /// As `write`.
    pub fn write_apart(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::EOR | SendFlags::NOSIGNAL;
        let sent = match self {
            Self::Tcp(s) => sendmsg(s, pieces, &mut control, flags),
            // Packets of the same kind are never joined there.
            Self::Unix(s) => sendmsg(s, pieces, &mut control, SendFlags::NOSIGNAL),
        };
        Ok(sent?)
    }

    /// Marks everything sent from now on, so that networks and hosts that
    /// honour the mark serve it accordingly. Of no consequence where it cannot
    /// be marked: not on a unix socket.
    pub fn mark(&self, mark: Mark) {
        let Self::Tcp(stream) = self else {
            return;
        };
        let socket = SockRef::from(stream);
        let field = mark.dscp() << 2;
        let marked = stream
            .local_addr()
            .and_then(|address| match address.ip().to_canonical() {
                IpAddr::V4(_) => socket.set_tos_v4(field),
                IpAddr::V6(_) => socket.set_tclass_v6(field),
            })
            // Last: setting the field also sets a priority.
            .and_then(|()| socket.set_priority(mark.priority()));
        if let Err(error) = marked {
            tracing::debug!(%error, ?mark, "not marked");
        }
    }

    /// Lets writing wait while more than `bytes` have not left yet
    /// (`TCP_NOTSENT_LOWAT`): what is written next would stand behind them.
    /// On a unix socket it does nothing.
    pub fn bound_unsent(&self, bytes: u32) {
        if let Self::Tcp(stream) = self
            && let Err(error) = SockRef::from(stream).set_tcp_notsent_lowat(bytes)
        {
            tracing::debug!(%error, "unsent bytes not bounded");
        }
    }

    /// Bounds the kernel's send buffer, in bytes.
    ///
    /// # Errors
    /// What `setsockopt` says.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        SockRef::from(self).set_send_buffer_size(bytes)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) => s.as_fd(),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&mut &*s).read(buffer),
            Stream::Unix(s) => (&mut &*s).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&mut &*s).write(buffer),
            Stream::Unix(s) => (&mut &*s).write(buffer),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&mut &*s).write_vectored(pieces),
            Stream::Unix(s) => (&mut &*s).write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
