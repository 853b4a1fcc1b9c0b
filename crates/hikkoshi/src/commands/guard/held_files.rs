//! Files that a guard holds open, because they have no name.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use error_reporter::Report;
use rustix::fs::{Mode, OFlags};

/// How often to check whether there is still a journal. The memory of a guest that was moved or
/// given up stays allocated that much longer.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Open files.
#[derive(Debug)]
pub(super) struct HeldFiles(Vec<File>);

impl HeldFiles {
    /// Opens what it can, for holding only (`O_PATH`).
    pub(super) fn open(paths: &[PathBuf]) -> Self {
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(file) => files.push(file.into()),
                Err(error) => {
                    let error = io::Error::from(error);
                    tracing::warn!(error = %Report::new(&error), path = %path.display(), "holding a RAM file without a name: if this engine is killed, the source's QEMU must not end");
                }
            }
        }
        Self(files)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Holds them until `journal` is removed. The process that started this one, and readers of its
    /// output, do not wait for that.
    pub(super) fn hold(&self, journal: &Path) {
        if self.is_empty() {
            return;
        }
        detach();
        while journal.exists() {
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Closes the standard streams.
fn detach() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    let done = rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&null))
        .and_then(|()| rustix::stdio::dup2_stderr(&null));
    if let Err(error) = done {
        tracing::debug!(error = %Report::new(&io::Error::from(error)), "closing the standard streams");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_is_held_that_has_no_name() {
        let file = tempfile::tempfile().unwrap();
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        let held = HeldFiles::open(&[open.into(), "/nowhere/file".into()]);
        assert_eq!(held.0.len(), 1);
        let same = |one: &File, other: &File| {
            use std::os::unix::fs::MetadataExt;
            one.metadata().unwrap().ino() == other.metadata().unwrap().ino()
        };
        assert!(same(&held.0[0], &file));
    }
}
