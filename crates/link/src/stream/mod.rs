//! A connected socket, TCP or unix, with or without TLS. The reader and the writer of a link share
//! it.

mod accepted_link;
mod busy_poll;
mod error;
mod reader;
mod split;
mod traffic_class;
mod writer;

pub use accepted_link::AcceptedLink;
pub use error::{LinkError, TICK};
use error_reporter::Report;
pub use reader::LinkReader;
pub use split::split;
pub(crate) use traffic_class::TrafficClass;
pub use writer::LinkWriter;

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::{TcpInfo, connect_unix, set_pace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::Address;
use crate::tls;
use crate::tls::{Fingerprint, Opener, Sealer, SecureError, TimeLimits, TlsClient, TlsServer};
use hikkoshi_linux::CancelFlag;

/// How long sent bytes may stay unacknowledged before the link counts as broken
/// (`TCP_USER_TIMEOUT`, RFC 5482).
pub const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected stream socket. Reading and writing take `&self`: one thread reads, one thread
/// writes.
#[derive(Debug)]
pub enum Stream {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A unix stream connection.
    Unix(UnixStream),
    /// A connection of either kind with TLS. The bytes read and written here are TLS records, which
    /// the link's reader opens and its writer seals.
    Secure(Box<Secured>),
}

/// A connection with TLS.
#[derive(Debug)]
pub struct Secured {
    socket: Stream,
    opener: Mutex<Option<Opener>>,
    sealer: Mutex<Option<Sealer>>,
}

impl Stream {
    /// Connects to `address`: tries each of its socket addresses in turn; with `loopback_only` only
    /// loopback addresses. Does no TLS handshake.
    ///
    /// # Errors
    /// The error of the last attempt, or of a stop by `stop`.
    pub fn connect(address: &Address, loopback_only: bool, stop: &CancelFlag) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::Unix(connect_to_unix(path, stop)?)),
            Address::Tcp(_) => {
                let found = address.resolve().map_err(io::Error::other)?;
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for socket_address in found {
                    if loopback_only && !socket_address.ip().is_loopback() {
                        // The name resolved to this machine when it was checked.
                        last = io::Error::other(format!(
                            "the name now resolves to {socket_address}, which is not on this \
                             machine, and the link is not encrypted"
                        ));
                        continue;
                    }
                    match connect_to(socket_address, stop) {
                        Ok(stream) => return Self::tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Takes an accepted or connected TCP socket, disables Nagle's algorithm and detects dead
    /// peers.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let stream = Self::Tcp(stream);
        stream.set_stall_timeout(DEFAULT_STALL_TIMEOUT)?;
        Ok(stream)
    }

    /// Sets how long the peer may be silent, or leave sent bytes unacknowledged, before the link
    /// counts as broken (default: [`DEFAULT_STALL_TIMEOUT`]). Has no effect on a unix socket, whose
    /// peer cannot disappear without notice.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_stall_timeout(&self, timeout: Duration) -> io::Result<()> {
        let Self::Tcp(stream) = self.socket() else {
            return Ok(());
        };
        let socket = SockRef::from(stream);
        // The kernel uses milliseconds here and whole seconds below.
        socket.set_tcp_user_timeout(Some(timeout))?;
        let second = Duration::from_secs(1);
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time((timeout / 4).max(second))
                .with_interval((timeout / 8).max(second))
                .with_retries(4),
        )
    }

    /// Does a client's TLS handshake on a new connection.
    ///
    /// # Errors
    /// See [`SecureError`].
    pub fn secure_client(
        self,
        client: &TlsClient,
        limits: TimeLimits<'_>,
    ) -> Result<Self, SecureError> {
        self.set_timeout(Some(TICK))?;
        let (opener, sealer) = tls::connect(client, &mut &self, limits)?;
        Ok(Self::secured(self, opener, sealer))
    }

    /// Does a server's TLS handshake on a new connection. Also returns the fingerprint of the
    /// source's key, if the source was invited.
    ///
    /// # Errors
    /// See [`SecureError`].
    pub fn secure_server(
        self,
        server: &TlsServer,
        limits: TimeLimits<'_>,
    ) -> Result<(Self, Option<Fingerprint>), SecureError> {
        self.set_timeout(Some(TICK))?;
        let (opener, sealer, source) = tls::accept(server, &mut &self, limits)?;
        Ok((Self::secured(self, opener, sealer), source))
    }

    fn secured(socket: Self, opener: Opener, sealer: Sealer) -> Self {
        Self::Secure(Box::new(Secured {
            socket,
            opener: Mutex::new(Some(opener)),
            sealer: Mutex::new(Some(sealer)),
        }))
    }

    /// Takes the receiving keys; `None` without TLS.
    ///
    /// # Errors
    /// When they are taken already: a link has one reader.
    pub(crate) fn take_opener(&self) -> io::Result<Option<Opener>> {
        match self {
            Self::Secure(secured) => take(&secured.opener),
            Self::Tcp(_) | Self::Unix(_) => Ok(None),
        }
    }

    /// Takes the sending keys; `None` without TLS.
    ///
    /// # Errors
    /// When they are taken already: a link has one writer.
    pub(crate) fn take_sealer(&self) -> io::Result<Option<Sealer>> {
        match self {
            Self::Secure(secured) => take(&secured.sealer),
            Self::Tcp(_) | Self::Unix(_) => Ok(None),
        }
    }

    /// Returns the keys that were taken.
    pub(crate) fn return_keys(&self, opener: Opener, sealer: Sealer) {
        if let Self::Secure(secured) = self {
            *secured
                .opener
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(opener);
            *secured
                .sealer
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(sealer);
        }
    }

    /// The socket below TLS.
    fn socket(&self) -> &Self {
        match self {
            Self::Secure(s) => &s.socket,
            Self::Tcp(_) | Self::Unix(_) => self,
        }
    }

    /// Sets the timeout of every later `read` and `write` call; `None`: no timeout.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s
                .set_read_timeout(timeout)
                .and_then(|()| s.set_write_timeout(timeout)),
            Self::Unix(s) => s
                .set_read_timeout(timeout)
                .and_then(|()| s.set_write_timeout(timeout)),
            Self::Secure(s) => s.socket.set_timeout(timeout),
        }
    }

    /// Ends the connection in both directions and wakes blocked threads.
    pub fn shutdown(&self) {
        // An error means that the connection has ended already.
        let _ = match self {
            Self::Tcp(s) => s.shutdown(Shutdown::Both),
            Self::Unix(s) => s.shutdown(Shutdown::Both),
            Self::Secure(s) => return s.socket.shutdown(),
        };
    }

    /// The kernel's TCP_INFO; `None` if the socket is not TCP or the kernel does not support it.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        match self {
            Self::Tcp(s) => TcpInfo::get(s).ok(),
            Self::Unix(_) => None,
            Self::Secure(s) => s.socket.tcp_info(),
        }
    }

    /// When data of the peer arrived last, also on a connection that has failed. `None` on a unix
    /// socket, whose peer cannot disappear without notice.
    pub fn last_data(&self) -> Option<Instant> {
        Instant::now().checked_sub(self.tcp_info()?.since_data)
    }

    /// When data or an acknowledgement of the peer's kernel arrived last; otherwise as
    /// [`last_data`](Self::last_data).
    pub fn last_sign(&self) -> Option<Instant> {
        let info = self.tcp_info()?;
        Instant::now().checked_sub(info.since_data.min(info.since_ack))
    }

    /// Limits the kernel's sending rate; `None`: no limit. Has no effect where the kernel does not
    /// support it.
    pub fn set_pace(&self, bytes_per_second: Option<f64>) {
        // The value is positive, and `as` saturates.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let pace = bytes_per_second.map_or(u64::MAX, |rate| rate as u64);
        if let Self::Tcp(s) = self.socket()
            && let Err(error) = set_pace(s, pace)
        {
            tracing::debug!(error = %Report::new(&error), pace, "cannot set the pace");
        }
    }

    /// Writes `pieces` as a separate packet (`MSG_EOR`). Otherwise the kernel joins queued data to
    /// packets of up to 64 KiB, and it sends each packet at once, whatever the pace.
    ///
    /// # Errors
    /// The error of `sendmsg`.
    pub(crate) fn write_packet(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::EOR | SendFlags::NOSIGNAL;
        let sent = match self {
            Self::Tcp(s) => sendmsg(s, pieces, &mut control, flags),
            // A unix socket never joins data to packets.
            Self::Unix(s) => sendmsg(s, pieces, &mut control, SendFlags::NOSIGNAL),
            Self::Secure(s) => return s.socket.write_packet(pieces),
        };
        Ok(sent?)
    }

    /// Sets the traffic class of everything sent from now on, for networks and hosts that use it.
    /// Has no effect where it cannot be set, such as on a unix socket.
    pub(crate) fn mark(&self, mark: TrafficClass) {
        let Self::Tcp(stream) = self.socket() else {
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
            tracing::debug!(error = %Report::new(&error), ?mark, "cannot set the traffic class");
        }
    }

    /// Blocks writes while more than `bytes` have not been sent (`TCP_NOTSENT_LOWAT`), because the
    /// next message would queue behind them. Has no effect on a unix socket.
    pub fn bound_unsent(&self, bytes: u32) {
        if let Self::Tcp(stream) = self.socket()
            && let Err(error) = SockRef::from(stream).set_tcp_notsent_lowat(bytes)
        {
            tracing::debug!(error = %Report::new(&error), "cannot limit the unsent bytes");
        }
    }
}

fn take<T>(end: &Mutex<Option<T>>) -> io::Result<Option<T>> {
    let taken = end.lock().unwrap_or_else(PoisonError::into_inner).take();
    let twice = || io::Error::other("the TLS keys of a link were taken twice");
    taken.ok_or_else(twice).map(Some)
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Unix(s) => s.as_fd(),
            Self::Secure(s) => s.socket.as_fd(),
        }
    }
}

impl Stream {
    /// Reads until `buffer` is full, the stream ends or the socket's timeout has passed, in one
    /// system call (`MSG_WAITALL`, recv(2)).
    pub(crate) fn read_all(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let flags = rustix::net::RecvFlags::WAITALL;
        let (read, _) = rustix::net::recv(self.as_fd(), buffer, flags)?;
        Ok(read)
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&mut &*s).read(buffer),
            Stream::Unix(s) => (&mut &*s).read(buffer),
            Stream::Secure(s) => (&mut &s.socket).read(buffer),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&mut &*s).write(buffer),
            Stream::Unix(s) => (&mut &*s).write(buffer),
            Stream::Secure(s) => (&mut &s.socket).write(buffer),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => (&mut &*s).write_vectored(pieces),
            Stream::Unix(s) => (&mut &*s).write_vectored(pieces),
            Stream::Secure(s) => (&mut &s.socket).write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects to one address, until it answers, the attempt times out, or `stop` is set.
fn connect_to(address: SocketAddr, stop: &CancelFlag) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {
            wait_until_connected(&socket, stop)?;
        }
        tried => tried?,
    }
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Connects to a unix socket, until there is room in its queue, the attempt times out, or `stop` is
/// set.
fn connect_to_unix(path: &Path, stop: &CancelFlag) -> io::Result<UnixStream> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match connect_unix(path) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                if stop.is_cancelled() || Instant::now() >= deadline {
                    return Err(error);
                }
            }
            tried => return tried,
        }
        thread::sleep(TICK);
    }
}

fn wait_until_connected(socket: &Socket, stop: &CancelFlag) -> io::Result<()> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
    while Instant::now() < deadline {
        if stop.is_cancelled() {
            return Err(io::Error::other("stopped before the peer answered"));
        }
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return socket.take_error()?.map_or(Ok(()), Err),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_connection_attempt_without_an_answer_ends_on_stop() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&loopback.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        // The kernel drops connection attempts while the queue is full.
        let fill = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&address.into());
            socket
        };
        let _queue: Vec<_> = (0..4).map(|_| fill()).collect();
        let stop = CancelFlag::new();
        let stopper = stop.clone();
        let stopping = thread::spawn(move || {
            thread::sleep(2 * TICK);
            stopper.cancel();
        });
        let error = connect_to(address, &stop).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(
            Report::new(&error).to_string().contains("stopped"),
            "{error}"
        );
        stopping.join().unwrap();
    }

    /// A receiver that is stopped accepts no connection.
    #[test]
    fn a_full_queue_of_a_unix_socket_is_waited_for_until_stop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receiver");
        let listener = UnixListener::bind(&path).unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = connect_unix(&path) {
            queue.push(stream);
        }
        let address = Address::Unix(path);
        let connect = |stop: &CancelFlag| Stream::connect(&address, false, stop);
        let error = connect(&CancelFlag::cancelled()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let connecting = thread::scope(|scope| {
            let connecting = scope.spawn(|| connect(&CancelFlag::new()));
            thread::sleep(2 * TICK);
            listener.accept().unwrap();
            connecting.join().unwrap()
        });
        connecting.unwrap();
    }

    /// The name resolved to this machine when it was checked first.
    #[test]
    fn loopback_only_refuses_other_addresses() {
        let connect = |address: &str, stop: &CancelFlag| {
            Stream::connect(&address.parse().unwrap(), true, stop)
        };
        // An attempt to connect would fail with the stop or a network error instead.
        let error = connect("192.0.2.1:9", &CancelFlag::cancelled()).unwrap_err();
        assert_eq!(
            Report::new(&error).to_string(),
            "the name now resolves to 192.0.2.1:9, which is not on this machine, and the link is \
             not encrypted"
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        connect(&address, &CancelFlag::new()).unwrap();
    }
}
