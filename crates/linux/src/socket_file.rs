//! The file to which a unix socket is bound.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::errno::check;

/// `SIOCUNIXFILE` (`linux/un.h`).
const SIOCUNIXFILE: libc::Ioctl = 0x89e0;

/// Opens the file to which a unix socket is bound, with `O_PATH`. A connection through it
/// (`/proc/self/fd/NUMBER`) reaches this socket, whatever the path leads to by now.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN` in the user namespace of the socket's network namespace;
/// `ENOENT` if the socket has no file.
pub fn socket_file(socket: impl AsFd) -> io::Result<File> {
    // SAFETY: the descriptor is open as long as it is borrowed. The request has no argument.
    let number = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCUNIXFILE) };
    check(number)?;
    // SAFETY: the kernel has made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(number) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_sockets_file_is_its_own_whatever_has_its_name() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs CAP_NET_ADMIN");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&path).unwrap();
        let others = UnixListener::bind(&other).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let file = socket_file(&listener).unwrap();
        UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener.accept().unwrap();
        others.set_nonblocking(true).unwrap();
        assert_eq!(others.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        let (nameless, _peer) = UnixStream::pair().unwrap();
        assert_eq!(
            socket_file(&nameless).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}
