//! Sockets of a relay, TCP or unix.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// What begins the address of a unix socket.
const UNIX: &str = "unix:";

/// Where a relay listens.
#[derive(Debug)]
pub enum RelayListener {
    /// At a TCP address.
    Tcp(TcpListener),
    /// At this path.
    Unix(UnixListener, PathBuf),
}

impl RelayListener {
    /// Listens at `HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub fn bind(address: &str) -> io::Result<Self> {
        Ok(match address.strip_prefix(UNIX) {
            Some(path) => Self::Unix(UnixListener::bind(path)?, path.into()),
            None => Self::Tcp(TcpListener::bind(address)?),
        })
    }

    /// Where it listens, as `bind` understands it.
    pub(super) fn address(&self) -> io::Result<String> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.to_string(),
            Self::Unix(_, path) => format!("{UNIX}{}", path.display()),
        })
    }

    pub(super) fn accept(&self) -> io::Result<RelaySocket> {
        match self {
            Self::Tcp(listener) => RelaySocket::tcp(listener.accept()?.0),
            Self::Unix(listener, _) => Ok(RelaySocket::Unix(listener.accept()?.0)),
        }
    }

    /// Ends `accept`, now and later. Connections are refused.
    pub(super) fn end(&self) {
        let socket = match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        };
        // It may have ended already.
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

/// One end of a connection.
#[derive(Debug)]
pub enum RelaySocket {
    /// Over TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
}

impl RelaySocket {
    /// Connects to `HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect(address: &str) -> io::Result<Self> {
        match address.strip_prefix(UNIX) {
            Some(path) => UnixStream::connect(path).map(Self::Unix),
            None => Self::tcp(TcpStream::connect(address)?),
        }
    }

    fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        // It may be closed already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Refuses further data, as the kernel does for a process that has ended. What has arrived is
    /// read first: with a full buffer the peer could not send anything that is refused, and would
    /// wait for its timeout.
    pub(super) fn refuse(mut self: &Self) {
        self.shutdown(Shutdown::Read);
        // Only an error of a connection that is closed already ends it earlier.
        let _ = io::copy(&mut self, &mut io::sink());
    }
}

impl Read for &RelaySocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            RelaySocket::Tcp(stream) => (&*stream).read(buffer),
            RelaySocket::Unix(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &RelaySocket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            RelaySocket::Tcp(stream) => (&*stream).write(buffer),
            RelaySocket::Unix(stream) => (&*stream).write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
