//! The front of several receivers: accepts connections on one port, reads which receiver each one
//! is for, and passes it on, with all of its bytes.
//!
//! The front has no keys. It reads the first TLS message with `MSG_PEEK`, so that the receiver
//! reads it again.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::{CancelFlag, sandbox_thread};
use rustix::event::{PollFd, PollFlags, Timespec};
use thiserror::Error;

use crate::accept::pending::PendingHandshakes;
use crate::tls::Route;
use crate::{Address, Stream, TICK};

/// How long the first message may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often to look for the rest of a message that has arrived in part.
const PEEK_INTERVAL: Duration = Duration::from_millis(5);

/// The header of a TLS record (RFC 8446, section 5.1).
const HEADER: usize = 5;

/// The longest first message, in bytes. Those of hikkoshi have less than 500.
const MAX_HELLO: usize = 8 << 10;

/// A connection whose receiver is known. Nothing was read from it.
#[derive(Debug)]
pub struct RoutedConnection {
    /// The connection.
    pub stream: TcpStream,
    /// The peer.
    pub peer: SocketAddr,
    /// Where it is to go.
    pub route: Route,
}

/// A connection that cannot be passed on.
#[derive(Debug, Error)]
enum NotRouted {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer did not send its first message in time")]
    TimedOut,
    #[error("the peer does not use TLS: the source needs an invitation (--to)")]
    NotTls,
    #[error(
        "the peer does not name a receiver: it is not hikkoshi, is an older version, or has no \
         invitation"
    )]
    NoRoute,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A listener in front of several receivers.
#[derive(Debug)]
pub struct Front {
    listener: TcpListener,
    address: Address,
    pending: PendingHandshakes,
}

impl Front {
    /// Listens at a TCP address.
    ///
    /// # Errors
    /// When it is not a TCP address, or cannot be listened on.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let found = address.resolve().map_err(io::Error::other)?;
        if found.is_empty() {
            return Err(io::Error::other(
                "only a TCP address can have several receivers",
            ));
        }
        Self::at(TcpListener::bind(&found[..])?)
    }

    /// Uses a socket that listens already.
    ///
    /// # Errors
    /// When it is not one of TCP.
    pub fn at(listener: TcpListener) -> io::Result<Self> {
        let address = Address::Tcp(listener.local_addr()?.to_string());
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            address,
            pending: PendingHandshakes::default(),
        })
    }

    /// The address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Logs, within a rate limit, that a connection is not passed on.
    pub fn log_rejection(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        self.pending.log_rejection(&peer.to_string(), why);
    }

    /// Accepts connections and sends them to `routed` until `stop` is set. When that channel is
    /// full, a connection is closed.
    ///
    /// # Errors
    /// When `poll` fails.
    pub fn serve(
        &self,
        routed: &SyncSender<RoutedConnection>,
        stop: &CancelFlag,
    ) -> io::Result<()> {
        let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
        while !stop.is_cancelled() {
            let mut poll = [PollFd::from_borrowed_fd(
                self.listener.as_fd(),
                PollFlags::IN,
            )];
            match rustix::event::poll(&mut poll, Some(&tick)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.accept(routed, stop) {
                // The connection was closed before it was accepted, or no file descriptors are
                // left. Neither ends the front.
                tracing::warn!(error = %Report::new(&error), "accepting a connection");
                thread::sleep(TICK);
            }
        }
        Ok(())
    }

    /// Accepts a connection and starts a thread that reads its first message.
    fn accept(&self, routed: &SyncSender<RoutedConnection>, stop: &CancelFlag) -> io::Result<()> {
        let (stream, peer) = self.listener.accept()?;
        stream.set_read_timeout(Some(TICK))?;
        let stream = Stream::Tcp(stream);
        let Some(slot) = self.pending.add(&stream, Some(peer.ip()), stop)? else {
            return Ok(());
        };
        let (routed, stop, pending) = (routed.clone(), stop.clone(), self.pending.clone());
        thread::Builder::new()
            .name("front-hello".into())
            .spawn(move || {
                let _slot = slot;
                sandbox_thread();
                let Stream::Tcp(stream) = stream else { return };
                match read_route(&stream, &stop) {
                    Ok(route) => {
                        let connection = RoutedConnection {
                            stream,
                            peer,
                            route,
                        };
                        if let Err(TrySendError::Full(more)) = routed.try_send(connection) {
                            let why = "too many connections wait for their receivers";
                            pending.log_rejection(&more.peer.to_string(), &why);
                        }
                    }
                    Err(error) => pending.log_rejection(&peer.to_string(), &Report::new(&error)),
                }
            })
            .map(drop)
    }
}

/// Reads the route, and leaves all bytes in the socket.
fn read_route(stream: &TcpStream, stop: &CancelFlag) -> Result<Route, NotRouted> {
    let deadline = Instant::now() + TIMEOUT;
    let mut record = vec![0; HEADER];
    peek(stream, &mut record, deadline, stop)?;
    let [22, 3, _, high, low] = record[..] else {
        return Err(NotRouted::NotTls);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len > MAX_HELLO {
        return Err(NotRouted::NoRoute);
    }
    record.resize(HEADER + len, 0);
    peek(stream, &mut record, deadline, stop)?;
    Route::of_client_hello(&record).ok_or(NotRouted::NoRoute)
}

/// Fills `bytes` with the first bytes of the connection.
fn peek(
    stream: &TcpStream,
    bytes: &mut [u8],
    deadline: Instant,
    stop: &CancelFlag,
) -> Result<(), NotRouted> {
    loop {
        if Instant::now() > deadline || stop.is_cancelled() {
            return Err(NotRouted::TimedOut);
        }
        match stream.peek(bytes) {
            Ok(0) => return Err(NotRouted::Closed),
            Ok(n) if n == bytes.len() => return Ok(()),
            // There is no event for a longer message.
            Ok(_) => thread::sleep(PEEK_INTERVAL),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::tls::{TlsClient, TlsServer};
    use std::io::{Read, Write};
    use std::sync::mpsc::{Receiver, sync_channel};

    /// A front, and the connections that it passes on.
    fn with_front(test: impl FnOnce(SocketAddr, &Receiver<RoutedConnection>)) {
        let front = Front::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address = front.address().resolve().unwrap()[0];
        let (sender, routed) = sync_channel(8);
        let stop = CancelFlag::new();
        thread::scope(|scope| {
            scope.spawn(|| front.serve(&sender, &stop).unwrap());
            test(address, &routed);
            stop.cancel();
        });
    }

    /// The first message of a source with an invitation of `server`.
    fn client_hello(server: &TlsServer) -> (Vec<u8>, Route) {
        let invitation = server.invitation("h:1".parse().unwrap()).unwrap();
        let client = TlsClient::invited(&invitation).unwrap();
        let mut connection =
            rustls::ClientConnection::new(client.config.clone(), client.name.clone()).unwrap();
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        (hello, invitation.route())
    }

    #[test]
    fn a_connection_is_passed_on_with_its_first_message() {
        let (hello, route) = client_hello(&TlsServer::inviting().unwrap());
        with_front(|address, routed| {
            let mut peer = TcpStream::connect(address).unwrap();
            // In parts, as a network may deliver it.
            for part in [&hello[..3], &hello[3..40], &hello[40..]] {
                peer.write_all(part).unwrap();
                thread::sleep(2 * PEEK_INTERVAL);
            }
            let mut passed = routed.recv().unwrap();
            assert_eq!(passed.route, route);
            assert_eq!(passed.peer, peer.local_addr().unwrap());
            let mut read = vec![0; hello.len()];
            passed.stream.read_exact(&mut read).unwrap();
            assert_eq!(read, hello);
        });
    }

    #[test]
    fn other_connections_are_closed() {
        let (hello, _) = client_hello(&TlsServer::inviting().unwrap());
        let mut without = hello.clone();
        let at = without.windows(4).position(|part| part == b"1 to").unwrap();
        without[at] = b'2';
        let long = [22, 3, 1, 0xff, 0xff];
        with_front(|address, routed| {
            for bytes in [&b"GET / HTTP/1.1\r\n"[..], &long, &without, b"hk\0\0\0"] {
                let mut peer = TcpStream::connect(address).unwrap();
                peer.write_all(bytes).unwrap();
                // It is closed, perhaps by a reset.
                assert!(matches!(peer.read(&mut [0]), Ok(0) | Err(_)));
            }
            assert!(routed.try_recv().is_err());
        });
    }
}
