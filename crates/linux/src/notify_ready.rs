//! Tells a service manager that this service is ready: the protocol of sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the service is ready, if a service manager has asked for it (`NOTIFY_SOCKET`).
///
/// # Errors
/// When the socket cannot be reached.
pub fn notify_ready() -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(socket) => notify(&socket),
        None => Ok(()),
    }
}

fn notify(socket: &OsStr) -> io::Result<()> {
    // "@" stands for the abstract namespace of unix(7).
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?
        .send_to_addr(b"READY=1", &address)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram, name: &OsStr) -> Vec<u8> {
        notify(name).unwrap();
        let mut message = [0; 64];
        let len = socket.recv(&mut message).unwrap();
        message[..len].to_vec()
    }

    #[test]
    fn the_service_manager_gets_the_message() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        assert_eq!(received(&socket, path.as_os_str()), b"READY=1");
        let name = format!("hikkoshi-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let name = format!("@{name}");
        assert_eq!(received(&socket, OsStr::new(&name)), b"READY=1");
        assert!(notify(OsStr::new("/nowhere/notify")).is_err());
    }
}
