//! What QEMU writes to its standard error while it loads a guest.
//!
//! QMP says only that a load has failed. Which device does not fit is in a line on standard error.
//! If that is a file, as for a QEMU that was started from a template, it can be read; and a
//! machine's owner may keep it in a log. It is shown here, and not sent to the source: it may name
//! files of this host.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_linux::Process;
use hikkoshi_wire::text::one_line;

/// The most bytes that are read: QEMU's first message is the one that matters.
const MAX_READ: usize = 4096;

/// The most characters that are shown.
const MAX_SHOWN: usize = 300;

/// How long the program that writes a machine's log may lag behind.
const LAG: Duration = Duration::from_millis(500);

/// The time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The file that has QEMU's standard error, from its present end on.
#[derive(Debug)]
pub(super) struct Written {
    file: File,
    from: u64,
}

impl Written {
    /// `None`: it is not a file, or QEMU itself could not read it.
    pub(super) fn from_now_on(process: &Process) -> Option<Self> {
        let opened = process
            .descriptor(2)
            .and_then(|own| readable(&own, process.user()?));
        let file = opened
            .inspect_err(|error| tracing::debug!(%error, "QEMU's standard error is not read"))
            .ok()?;
        Self::from_end_of(file)
    }

    /// The log that a machine's owner keeps.
    pub(super) fn from_end_of(log: File) -> Option<Self> {
        let from = log.metadata().ok()?.len();
        Some(Self { file: log, from })
    }

    /// The text that is written soon, after QEMU has ended.
    pub(super) fn text_soon(&self) -> Option<String> {
        let until = Instant::now() + LAG;
        loop {
            let text = self.text();
            if text.is_some() || Instant::now() > until {
                return text;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// What was written since, in one line. `None`: nothing.
    pub(super) fn text(&self) -> Option<String> {
        let mut bytes = vec![0; MAX_READ];
        // Cut since then: a log is kept short.
        let from = self.from.min(self.file.metadata().ok()?.len());
        let read = self.file.read_at(&mut bytes, from).ok()?;
        let text = String::from_utf8_lossy(bytes.get(..read)?).into_owned();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let text = lines.collect::<Vec<_>>().join("; ");
        let shown: String = one_line(&text).chars().take(MAX_SHOWN).collect();
        (!shown.is_empty()).then_some(shown)
    }
}

/// Opens a regular file for reading that this user may read. It was opened for writing, by a
/// process that must not be able to show what it cannot read itself.
fn readable(own: &OwnedFd, user: u32) -> io::Result<File> {
    let metadata = File::from(own.try_clone()?).metadata()?;
    let mode = metadata.mode();
    let may_read = user == 0 || mode & 0o004 != 0 || (metadata.uid() == user && mode & 0o400 != 0);
    if !metadata.is_file() || !may_read {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    File::open(format!("/proc/self/fd/{}", own.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_a_process_writes_is_read_from_then_on() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = File::options().append(true).open(file.path()).unwrap();
        writeln!(&log, "earlier").unwrap();
        let mut child = Command::new("sleep")
            .arg("1000")
            .stderr(log.try_clone().unwrap())
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        let written = Written::from_now_on(&process).unwrap();
        assert_eq!(written.text(), None);
        write!(&log, "\n one\n\ntwo\u{1b}[2J{}\n", "x".repeat(5000)).unwrap();
        let text = written.text().unwrap();
        assert!(text.starts_with("one; two?[2Jxxx"), "{text}");
        assert_eq!(text.chars().count(), MAX_SHOWN);
        log.set_len(0).unwrap();
        assert_eq!(written.text(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn other_things_than_readable_files_are_not_read() {
        let mut child = Command::new("sleep")
            .arg("1000")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(Written::from_now_on(&process).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = OwnedFd::from(file.reopen().unwrap());
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), mode).unwrap();
        };
        let owner = file.as_file().metadata().unwrap().uid();
        let other = owner + 1;
        set(0o600);
        assert!(readable(&own, owner).is_ok() && readable(&own, other).is_err());
        set(0o604);
        assert!(readable(&own, other).is_ok());
    }
}
