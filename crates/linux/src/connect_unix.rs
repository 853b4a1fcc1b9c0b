//! Connects to a unix socket without waiting.

use std::io;
use std::os::unix::ffi::OsStrExt;
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

/// Whether a process has accepted the connection `stream` to its socket in a folder, and no other
/// client waits there either.
///
/// # Errors
/// As reading `/proc/net/unix`; when the socket has no path.
pub fn is_accepted(stream: &UnixStream) -> io::Result<bool> {
    let peer = stream.peer_addr()?;
    let path = peer.as_pathname().ok_or(io::ErrorKind::InvalidInput)?;
    // The kernel lists a connection that was not accepted with the path of the socket, and without
    // an inode (`unix_seq_show` in `net/unix/af_unix.c`).
    let sockets = std::fs::read("/proc/thread-self/net/unix")?;
    let waits = |line: &[u8]| {
        let path = line.strip_suffix(path.as_os_str().as_bytes());
        let rest = path.map(String::from_utf8_lossy).unwrap_or_default();
        rest.split_whitespace().nth(6) == Some("0") && rest.split_whitespace().nth(7).is_none()
    };
    Ok(!sockets.split(|&byte| byte == b'\n').any(waits))
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
    fn a_connection_is_accepted_or_waits() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a 0.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let first = connect_unix(&socket).unwrap();
        assert!(!is_accepted(&first).unwrap());
        let _session = listener.accept().unwrap();
        assert!(is_accepted(&first).unwrap());
        let second = connect_unix(&socket).unwrap();
        assert!(!is_accepted(&second).unwrap());
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
