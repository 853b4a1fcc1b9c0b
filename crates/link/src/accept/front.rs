//! The front of several receivers: accepts connections on one port, reads which receiver each one
//! is for, and passes it on, with all of its bytes.
//!
//! For that the front needs no keys. It reads the first TLS message with `MSG_PEEK`, so that the
//! receiver reads it again. With a certificate, the front also accepts sources that ask for an
//! invitation (`request_invitation/`), and hosts that ask about this one (`inquiry/`).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_linux::{CancelFlag, Priority, PriorityClass, sandbox_thread};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, recv};
use thiserror::Error;

use crate::accept::pending::PendingHandshakes;
use crate::inquiry::{BadInquiry, accept_inquiry};
use crate::request_invitation::{BadRequest, accept_request};
use crate::tls::{Route, TimeLimits, TlsServer, Wanted};
use crate::{Address, Inquiry, InvitationRequest, Stream, TICK};

/// How long the first message may take, and a request with the TLS handshake before it.
const TIMEOUT: Duration = Duration::from_secs(10);

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

/// What a front has accepted.
#[derive(Debug)]
pub enum Arrival {
    /// A connection for one of the receivers.
    Link(RoutedConnection),
    /// A source asks for an invitation.
    Request(Box<InvitationRequest>),
    /// A host asks about this one.
    Inquiry(Box<Inquiry>),
}

/// The alert `no_application_protocol` (RFC 8446, section 6; RFC 7301, section 3.2), without
/// encryption.
const NO_APPLICATION_PROTOCOL: [u8; 7] = [21, 3, 3, 0, 2, 2, 120];

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
        "the peer does not name a receiver: it is not hikkoshi, or has neither an \
         invitation nor --name"
    )]
    NoRoute,
    #[error(
        "the peer asks {0} with a certificate, and this side has none that can be used (--tls-ca)"
    )]
    NoCertificate(&'static str),
    #[error("a source that asks for an invitation")]
    Request(#[from] BadRequest),
    #[error("a host that asks about this one")]
    Inquiry(#[from] BadInquiry),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How often the front's certificate is looked at.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// The front's certificate: it may be renewed, and may be unusable until then. A thread of its own
/// reads it, because its files may be on a file system that does not answer.
struct Certificate {
    read: Arc<dyn Fn() -> Option<TlsServer> + Send + Sync>,
    /// What was read last.
    last: Arc<Mutex<Option<TlsServer>>>,
}

impl Certificate {
    /// Reads it again and again until `stop` is set. The thread is not waited for.
    fn renew(&self, stop: &CancelFlag) -> io::Result<()> {
        let (read, last, stop) = (Arc::clone(&self.read), Arc::clone(&self.last), stop.clone());
        let renew = move || {
            let mut next = Instant::now() + RENEWAL_INTERVAL;
            while !stop.is_cancelled() {
                if Instant::now() >= next {
                    let now = read();
                    *last.lock().unwrap_or_else(PoisonError::into_inner) = now;
                    next = Instant::now() + RENEWAL_INTERVAL;
                }
                thread::sleep(TICK);
            }
        };
        let thread = thread::Builder::new().name("front-cert".into());
        thread.spawn(renew).map(drop)
    }

    fn last(&self) -> Option<TlsServer> {
        let last = self.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The log of a front's connections that are not passed on. Its rate is limited.
#[derive(Debug, Clone)]
pub struct RejectionLog(PendingHandshakes);

impl RejectionLog {
    /// Logs that a connection is not passed on.
    pub fn log(&self, peer: SocketAddr, why: &dyn fmt::Display) {
        self.0.log_rejection(&peer.to_string(), why);
    }
}

/// A listener in front of several receivers.
pub struct Front {
    listener: TcpListener,
    address: Address,
    pending: PendingHandshakes,
    certificate: Option<Certificate>,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
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
            certificate: None,
        })
    }

    /// Accepts also peers that have a certificate, and ask for an invitation or about this host.
    /// `certificate` reads this side's, if it can be used. It is called now, and each second by a
    /// thread of its own: no connection waits for it.
    #[must_use]
    pub fn with_certificate(
        mut self,
        certificate: impl Fn() -> Option<TlsServer> + Send + Sync + 'static,
    ) -> Self {
        let last = Arc::new(Mutex::new(certificate()));
        let read = Arc::new(certificate);
        self.certificate = Some(Certificate { read, last });
        self
    }

    /// The address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Prefers connections from these addresses, those of the sources of migrations under way, if
    /// there are too many connections.
    pub fn set_source_addresses(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.pending.set_source_addresses(addresses);
    }

    /// Logs, within a rate limit, that a connection is not passed on.
    pub fn log_rejection(&self, peer: SocketAddr, why: &dyn std::fmt::Display) {
        self.rejections().log(peer, why);
    }

    /// The log of connections that are not passed on, for other threads.
    pub fn rejections(&self) -> RejectionLog {
        RejectionLog(self.pending.clone())
    }

    /// Accepts connections and sends them to `arrivals` until `stop` is set. When that channel is
    /// full, a connection is closed.
    ///
    /// # Errors
    /// When `poll` fails, or the thread that reads the certificate cannot be started.
    pub fn serve(&self, arrivals: &SyncSender<Arrival>, stop: &CancelFlag) -> io::Result<()> {
        if let Some(certificate) = &self.certificate {
            certificate.renew(stop)?;
        }
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
            if let Err(error) = self.accept(arrivals, stop) {
                // The connection was closed before it was accepted, or no file descriptors are
                // left. Neither ends the front.
                tracing::warn!(error = %Report::new(&error), "accepting a connection");
                thread::sleep(TICK);
            }
        }
        Ok(())
    }

    /// Accepts a connection and starts a thread that reads its first message.
    fn accept(&self, arrivals: &SyncSender<Arrival>, stop: &CancelFlag) -> io::Result<()> {
        let (stream, peer) = self.listener.accept()?;
        stream.set_read_timeout(Some(TICK))?;
        let stream = Stream::Tcp(stream);
        let Some(slot) = self.pending.add(&stream, Some(peer.ip()), stop)? else {
            return Ok(());
        };
        let (arrivals, stop, pending) = (arrivals.clone(), stop.clone(), self.pending.clone());
        let server = self.certificate.as_ref().and_then(Certificate::last);
        thread::Builder::new()
            .name("front-hello".into())
            .spawn(move || {
                let _slot = slot;
                // No guest waits for an unknown peer.
                Priority::ON.apply(PriorityClass::Background);
                sandbox_thread();
                let Stream::Tcp(stream) = stream else { return };
                match arrival(stream, peer, server.as_ref(), &stop) {
                    Ok(arrival) => {
                        if let Err(TrySendError::Full(_)) = arrivals.try_send(arrival) {
                            let why = "too many connections wait for their receivers";
                            pending.log_rejection(&peer.to_string(), &why);
                        }
                    }
                    Err(error) => pending.log_rejection(&peer.to_string(), &Report::new(&error)),
                }
            })
            .map(drop)
    }
}

/// Reads what a peer wants.
fn arrival(
    stream: TcpStream,
    peer: SocketAddr,
    server: Option<&TlsServer>,
    stop: &CancelFlag,
) -> Result<Arrival, NotRouted> {
    let limits = TimeLimits {
        deadline: Instant::now() + TIMEOUT,
        stop,
    };
    let hello = peek_hello(&stream, limits)?;
    match (Wanted::of_client_hello(&hello), server) {
        (Some(Wanted::Receiver(route)), _) => Ok(Arrival::Link(RoutedConnection {
            stream,
            peer,
            route,
        })),
        (Some(Wanted::Invitation), Some(server)) => {
            let stream = Stream::tcp(stream)?;
            let request = accept_request(stream, peer, server, limits)?;
            Ok(Arrival::Request(Box::new(request)))
        }
        (Some(Wanted::Answer), Some(server)) => {
            let stream = Stream::tcp(stream)?;
            let inquiry = accept_inquiry(stream, peer, server, limits)?;
            Ok(Arrival::Inquiry(Box::new(inquiry)))
        }
        (wanted, _) => {
            // The source reports a better reason than a connection that was closed.
            refuse(&stream, hello);
            Err(match wanted {
                Some(Wanted::Answer) => NotRouted::NoCertificate("about this host"),
                Some(_) => NotRouted::NoCertificate("for an invitation"),
                None => NotRouted::NoRoute,
            })
        }
    }
}

/// Answers a hello with an alert. An error changes nothing: the connection ends.
fn refuse(mut stream: &TcpStream, mut hello: Vec<u8>) {
    // Closing a connection with unread bytes would reset it, and the alert could be lost.
    let _ = stream.read_exact(&mut hello);
    let _ = stream.write_all(&NO_APPLICATION_PROTOCOL);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Reads the first message, and leaves all bytes in the socket.
fn peek_hello(stream: &TcpStream, limits: TimeLimits<'_>) -> Result<Vec<u8>, NotRouted> {
    let mut record = vec![0; HEADER];
    peek(stream, &mut record, limits)?;
    let [22, 3, _, high, low] = record[..] else {
        return Err(NotRouted::NotTls);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len > MAX_HELLO {
        return Err(NotRouted::NoRoute);
    }
    record.resize(HEADER + len, 0);
    peek(stream, &mut record, limits)?;
    Ok(record)
}

/// Fills `bytes` with the first bytes of the connection.
fn peek(stream: &TcpStream, bytes: &mut [u8], limits: TimeLimits<'_>) -> Result<(), NotRouted> {
    loop {
        if Instant::now() > limits.deadline || limits.stop.is_cancelled() {
            return Err(NotRouted::TimedOut);
        }
        match peek_once(stream, bytes)? {
            Some(0) => return Err(NotRouted::Closed),
            Some(count) if count == bytes.len() => return Ok(()),
            // The timeout of the socket has passed, or no more will come.
            Some(_) if is_closed(stream)? && peek_once(stream, bytes)? != Some(bytes.len()) => {
                return Err(NotRouted::Closed);
            }
            Some(_) | None => {}
        }
    }
}

/// Waits until `bytes` can be filled, or the timeout of the socket has passed, or the peer has
/// closed the connection, and reads what is there by then. `None`: nothing.
fn peek_once(stream: &TcpStream, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    // With MSG_WAITALL, the part of a message that has arrived does not wake the thread again and
    // again (tcp(7), recv(2)).
    match recv(stream, bytes, RecvFlags::PEEK | RecvFlags::WAITALL) {
        Ok((count, _)) => Ok(Some(count)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the peer will send no more.
fn is_closed(stream: &TcpStream) -> io::Result<bool> {
    let mut poll = [PollFd::new(stream, PollFlags::RDHUP)];
    let at_once = Timespec::default();
    Ok(rustix::event::poll(&mut poll, Some(&at_once))? > 0)
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "front_tests.rs"]
mod tests;
