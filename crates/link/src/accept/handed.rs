//! Connections that another process has accepted: passed by `SCM_RIGHTS` (unix(7)) over a unix
//! socket at which the receiver listens.
//!
//! The connection to that unix socket carries one message: a byte, and the descriptor. A source on
//! this host can use the same socket for its links. Then its first byte is another one.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::tls::TimeLimits;

/// The byte of the message. No TLS record and no hello begins with it.
const MARK: u8 = 0xa5;

/// Passes a connection to the receiver that listens at `path`.
///
/// # Errors
/// When no process listens there, or it does not accept connections.
pub fn hand_over(connection: impl AsFd, path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // If the queue of the receiver is full, this fails at once.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    let descriptors = [connection.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        &socket,
        &[IoSlice::new(&[MARK])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The connection that `carrier` carries; `None`: it is a link itself, and nothing was read.
pub(crate) fn receive(
    carrier: &UnixStream,
    limits: TimeLimits<'_>,
) -> io::Result<Option<TcpStream>> {
    let mut first = [0];
    let peeked = limits.retry(|| {
        let mut space: [MaybeUninit<u8>; 0] = [];
        let mut none = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut first)];
        let read = recvmsg(carrier, &mut into, &mut none, RecvFlags::PEEK);
        read.map(|read| read.bytes).map_err(io::Error::from)
    })?;
    if peeked == 0 || first != [MARK] {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut first)];
    loop {
        match recvmsg(carrier, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            read => break read.map(drop)?,
        }
    }
    let passed = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let passed: OwnedFd = passed.ok_or_else(|| io::Error::other("no connection was passed"))?;
    let socket = SockRef::from(&passed);
    // A listening socket, or one of another kind, is not a connection.
    if socket.r#type()? != Type::STREAM || socket.peer_addr()?.as_socket().is_none() {
        return Err(io::Error::other("what was passed is not a TCP connection"));
    }
    Ok(Some(passed.into()))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use hikkoshi_linux::CancelFlag;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    fn received(carrier: &UnixStream) -> io::Result<Option<TcpStream>> {
        carrier.set_read_timeout(Some(crate::TICK)).unwrap();
        let stop = CancelFlag::new();
        receive(
            carrier,
            TimeLimits {
                deadline: Instant::now() + Duration::from_secs(60),
                stop: &stop,
            },
        )
    }

    #[test]
    fn a_connection_is_passed_with_what_it_has_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receiver");
        let receiver = UnixListener::bind(&path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut source = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        source.write_all(b"hello").unwrap();
        let (connection, _) = listener.accept().unwrap();
        hand_over(&connection, &path).unwrap();
        drop(connection);
        let (carrier, _) = receiver.accept().unwrap();
        let mut passed = received(&carrier).unwrap().unwrap();
        let mut read = [0; 5];
        passed.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"hello");
        passed.write_all(b"!").unwrap();
        source.read_exact(&mut read[..1]).unwrap();
        assert_eq!(read[0], b'!');
    }

    #[test]
    fn a_link_of_this_host_is_not_touched() {
        let (mut source, carrier) = UnixStream::pair().unwrap();
        source.write_all(b"hk\0\0").unwrap();
        assert!(received(&carrier).unwrap().is_none());
        let mut read = [0; 4];
        (&carrier).read_exact(&mut read).unwrap();
        assert_eq!(&read, b"hk\0\0");
        drop(source);
        assert!(received(&carrier).unwrap().is_none());
    }

    #[test]
    fn what_is_not_a_connection_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receiver");
        let receiver = UnixListener::bind(&path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (pair, _other) = UnixStream::pair().unwrap();
        for other in [
            File::open("/dev/null").unwrap().as_fd(),
            listener.as_fd(),
            pair.as_fd(),
        ] {
            hand_over(other, &path).unwrap();
            let (carrier, _) = receiver.accept().unwrap();
            assert!(received(&carrier).is_err());
        }
        // A mark without a connection.
        let (mut source, carrier) = UnixStream::pair().unwrap();
        source.write_all(&[MARK]).unwrap();
        assert!(received(&carrier).is_err());
        assert!(hand_over(&listener, &folder.path().join("nowhere")).is_err());
    }
}
