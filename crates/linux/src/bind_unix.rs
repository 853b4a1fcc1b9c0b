//! Listens on a unix socket whose path is there only when it can be connected to.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Numbers of temporary names.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Listens at this path. The socket is made under a temporary name in the same folder: between
/// bind(2) and listen(2), a process that looks for sockets of processes that were killed would take
/// it for one, and remove it. Its owner alone may connect.
///
/// # Errors
/// [`io::ErrorKind::AddrInUse`]: there is something at the path.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Not longer than the names of sockets: that of the path is limited (unix(7)).
    let temporary = path.with_file_name(format!(".{}-{number}", std::process::id()));
    let listener = UnixListener::bind(&temporary)?;
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    let placed = std::fs::set_permissions(&temporary, permissions).and_then(|()| {
        Ok(renameat_with(
            CWD,
            &temporary,
            CWD,
            path,
            RenameFlags::NOREPLACE,
        )?)
    });
    match placed {
        Ok(()) => Ok(listener),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            Err(match error.kind() {
                io::ErrorKind::AlreadyExists => io::ErrorKind::AddrInUse.into(),
                _ => error,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect_unix;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_socket_is_there_when_it_can_be_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let refused = connect_unix(&path)
                        .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
                    assert!(!refused, "it is there, and no process listens");
                }
            });
            // Closed at the end only: a connection to one that is being closed is refused.
            let mut all = Vec::new();
            for _ in 0..400 {
                all.push(bind_unix(&path).unwrap());
                std::fs::remove_file(&path).unwrap();
            }
            done.store(true, Ordering::Release);
        });
    }

    #[test]
    fn what_is_there_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listener = bind_unix(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = bind_unix(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        connect_unix(&path).unwrap();
        listener.accept().unwrap();
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1, "no temporary name is left");
    }
}
