//! One end of a link, TCP or unix.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn connect(address: &str) -> io::Result<Self> {
        Ok(match address.strip_prefix("unix:") {
            Some(path) => Self::Unix(UnixStream::connect(path)?),
            None => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        })
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

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(buffer),
            Socket::Unix(stream) => (&*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(buffer),
            Socket::Unix(stream) => (&*stream).write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
