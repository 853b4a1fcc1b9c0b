//! Where the server listens.

use std::fmt::{self, Display};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hikkoshi_linux::connect_unix;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite};

/// Connections that wait to be accepted.
const QUEUE: i32 = 128;

/// An address to listen on: `IP:PORT`, `localhost:PORT` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port. All users of the host can connect to it. Port 0: a free one.
    Tcp(SocketAddr),
    /// A unix socket. Only the user of this process can connect to it.
    Unix(PathBuf),
}

/// It is not an address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not IP:PORT or unix:PATH, such as 127.0.0.1:8077, [::1]:8077 or unix:/run/page.sock"
)]
pub struct InvalidListen(String);

impl FromStr for Listen {
    type Err = InvalidListen;

    fn from_str(text: &str) -> Result<Self, InvalidListen> {
        let invalid = || InvalidListen(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(invalid()),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let parsed = text.parse().ok().or_else(|| {
            let port = text.strip_prefix("localhost:")?.parse().ok()?;
            Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        });
        parsed.map(Self::Tcp).ok_or_else(invalid)
    }
}

impl Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens. Returns the address, with the port if a free one was requested.
    pub(super) fn bind(listen: &Listen) -> io::Result<(Self, Listen)> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                Ok((Self::Tcp(listener), Listen::Tcp(address)))
            }
            Listen::Unix(path) => {
                let listener = bind_unix(path)?;
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(listener), listen.clone()))
            }
        }
    }

    /// The socket for tokio's thread.
    pub(super) fn into_async(self) -> io::Result<AsyncListener> {
        Ok(match self {
            Self::Tcp(listener) => AsyncListener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Self::Unix(listener) => {
                AsyncListener::Unix(tokio::net::UnixListener::from_std(listener)?)
            }
        })
    }
}

/// Makes a socket that only its owner can connect to, in place of one that no process serves.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    remove_stale(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Before it listens, no process can connect.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&socket, QUEUE)?;
    Ok(UnixListener::from(socket))
}

/// Removes a socket that an earlier process left: this one cannot remove its own when it ends,
/// because it may not write to files.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && connect_unix(path).is_err_and(is_refused) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A connection of a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A socket that listens, on tokio's thread.
#[derive(Debug)]
pub(super) enum AsyncListener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl AsyncListener {
    /// The next connection, and the IP address that it was made to.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let local = stream.local_addr()?.ip().to_canonical();
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), Some(local)))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn addresses_are_parsed() {
        for (text, parsed) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:8077", "127.0.0.1:8077"),
            ("unix:/run/page.sock", "unix:/run/page.sock"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), parsed);
        }
        for bad in [
            "",
            "8077",
            "127.0.0.1",
            "localhost",
            "host.example:80",
            "localhost:70000",
            "unix:",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_owner_can_connect_and_a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.sock");
        let listen = Listen::Unix(path.clone());
        let (listener, address) = Listener::bind(&listen).unwrap();
        assert_eq!(address, listen);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        connect_unix(&path).unwrap();
        let error = Listener::bind(&listen).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        Listener::bind(&listen).unwrap();
        // Another file is not replaced.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        let error = Listener::bind(&listen).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    }
}
