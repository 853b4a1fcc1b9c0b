//! Connects to a unix socket without waiting.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connects to a socket. A process that is stopped, or too slow, may have as many connections that
/// it has not accepted as it allows: then this fails at once, and does not wait for it.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`]: no process serves the socket.
/// [`io::ErrorKind::TimedOut`]: a process does, and accepts no connection now.
pub fn connect_unix(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(socket)?;
    match rustix::net::connect(&stream, &address) {
        // unix(7): the queue of the socket is full.
        Err(Errno::AGAIN) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "its process accepts no connection (it may be stopped)",
        )),
        connected => connected.map_err(io::Error::from),
    }?;
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether a process has the socket at `path`: a stream socket that it serves, or will serve. The
/// process does not notice the question.
///
/// # Errors
/// The error of `connect(2)`, if it means neither.
pub fn is_served(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Of another type, so that there is no connection.
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        // unix(7): the types differ.
        Err(Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
        Ok(()) => Err(io::Error::other("it is not a stream socket")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_is_served_as_long_as_a_process_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        assert!(!is_served(&path).unwrap());
        let listener = UnixListener::bind(&path).unwrap();
        assert!(is_served(&path).unwrap());
        // It has not got a connection by that.
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(listener);
        // Processes that other tests have forked have the listener as well, for a moment.
        while is_served(&path).unwrap() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Bound, and not listening yet.
        std::fs::remove_file(&path).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let bound =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&bound, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(is_served(&path).unwrap());
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(!is_served(&folder.path().join("file")).unwrap());
    }

    #[test]
    fn a_process_that_accepts_nothing_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        assert_eq!(
            connect_unix(&socket).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let listener = UnixListener::bind(&socket).unwrap();
        let mut accepted = Vec::new();
        let refused = loop {
            match connect_unix(&socket) {
                Ok(stream) => accepted.push(stream),
                Err(error) => break error,
            }
        };
        assert!(!accepted.is_empty());
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        drop(listener);
        // Processes that other tests have forked have the listener as well, for a moment.
        let begun = std::time::Instant::now();
        let is_refused = |error: io::Error| error.kind() == ErrorKind::ConnectionRefused;
        while !connect_unix(&socket).is_err_and(is_refused) {
            assert!(begun.elapsed().as_secs() < 60, "it is still served");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
