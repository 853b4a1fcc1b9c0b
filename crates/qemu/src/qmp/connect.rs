//! Opening the socket without ever hanging in `connect`.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How long to wait before asking again when the listener's queue is full.
const AGAIN: Duration = Duration::from_millis(20);

/// Connects, and gives a non-blocking stream.
///
/// `connect` on a Unix socket blocks for as long as the listener's queue is
/// full, and QEMU's has room for one: so non-blocking, and again until
/// `deadline`, when the error is [`io::ErrorKind::WouldBlock`].
pub(crate) fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    loop {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(AGAIN),
            Err(error) => return Err(error.into()),
        }
    }
}
