//! The process that serves a unix socket, found without a connection to it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The flag of a socket that listens, in the table (`__SO_ACCEPTCON`, `linux/net.h`).
const LISTENS: u64 = 1 << 16;

/// The process that listens on the unix socket at `path`, which must be written as that process has
/// written it. `None`: there is none, or this process may not see it (it is in another network
/// namespace, or in one that this process has no right to trace).
///
/// A connection would tell that as well, but the process would notice it.
#[must_use]
pub fn serving_process(path: &Path) -> Option<u32> {
    let table = fs::read("/proc/net/unix").ok()?;
    let target = format!("socket:[{}]", listening_inode(&table, path)?);
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut descriptors = descriptors.into_iter().flatten().flatten();
        descriptors
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(&target)))
    })
}

/// The inode of the listening socket at `path` in `/proc/net/unix` (proc(5)): lines of *Num*,
/// *RefCount*, *Protocol*, *Flags*, *Type*, *St*, *Inode* and *Path*.
fn listening_inode(table: &[u8], path: &Path) -> Option<u64> {
    table.split(|&byte| byte == b'\n').find_map(|line| {
        let line = line.strip_suffix(path.as_os_str().as_bytes())?;
        let line = str::from_utf8(line.strip_suffix(b" ")?).ok()?;
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, flags, _, _, inode] = words[..] else {
            return None;
        };
        let flags = u64::from_str_radix(flags, 16).ok()?;
        (flags & LISTENS != 0).then(|| inode.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_socket_that_listens_is_found_by_its_path() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0001 01 111 /run/guest/qmp
0000000000000000: 00000002 00000000 00010000 0001 01 222 /run/guest/qmp
0000000000000000: 00000002 00000000 00010000 0001 01 333 /run/guest/qmp with a blank
0000000000000000: 00000003 00000000 00000000 0001 03 444
";
        let of = |path| listening_inode(table, Path::new(path));
        assert_eq!(of("/run/guest/qmp"), Some(222));
        assert_eq!(of("/run/guest/qmp with a blank"), Some(333));
        assert_eq!(of("guest/qmp"), None);
        assert_eq!(of("/run/other"), None);
    }

    #[test]
    fn the_process_of_a_socket_does_not_notice_the_question() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert_eq!(serving_process(&path), None);
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(serving_process(&path), None, "it does not listen yet");
        rustix::net::listen(&socket, 1).unwrap();
        let listener = UnixListener::from(socket);
        let _client = UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        assert_eq!(serving_process(&path), Some(std::process::id()));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "it has got a connection");
    }
}
