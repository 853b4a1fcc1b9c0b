//! The process that listens on a unix socket, for a signal to it.

use std::io;
use std::path::Path;

use hikkoshi_linux::Process;
use hikkoshi_qemu::QmpListener;

/// A process that listens, or why there is none.
#[derive(Debug)]
pub(crate) enum ListeningProcess {
    /// This one.
    Process(Process),
    /// No process listens.
    None,
    /// It was found, and has ended, or another one listens now: look again.
    Changed,
    /// It is not visible from here, or its queue is full.
    Unknown,
}

impl ListeningProcess {
    /// Finds it.
    ///
    /// # Errors
    /// When connecting to the socket fails, or the process cannot be opened.
    pub(crate) fn at(socket: &Path) -> io::Result<Self> {
        Self::found(QmpListener::at(socket)?, || QmpListener::at(socket))
    }

    /// The process that was `found`, if it is still the one `now`.
    fn found(
        found: QmpListener,
        now: impl FnOnce() -> io::Result<QmpListener>,
    ) -> io::Result<Self> {
        let pid = match found {
            QmpListener::Process(pid) => pid,
            QmpListener::None => return Ok(Self::None),
            QmpListener::Unknown => return Ok(Self::Unknown),
        };
        let process = Process::open(pid);
        // The number may have been another process's by then.
        if now()? != found {
            return Ok(Self::Changed);
        }
        process.map(Self::Process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_process_that_still_listens_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let at = || ListeningProcess::at(&socket).unwrap();
        assert!(matches!(at(), ListeningProcess::None));
        let listener = UnixListener::bind(&socket).unwrap();
        let own = std::process::id();
        assert!(matches!(at(), ListeningProcess::Process(process) if process.pid() == own));
        // It ends between the two looks, and its number may be another process's.
        let found = QmpListener::Process(own);
        drop(listener);
        for now in [
            QmpListener::None,
            QmpListener::Unknown,
            QmpListener::Process(1),
        ] {
            let changed = ListeningProcess::found(found, || Ok(now)).unwrap();
            assert!(matches!(changed, ListeningProcess::Changed), "{now:?}");
        }
        // One that has ended, and was waited for.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = QmpListener::Process(child.id());
        child.wait().unwrap();
        let changed = ListeningProcess::found(ended, || Ok(QmpListener::None)).unwrap();
        assert!(matches!(changed, ListeningProcess::Changed));
    }
}
