//! Serves the disks of a machine whose monitor is not available, by QEMU's storage daemon.
//!
//! libvirt lends the monitor of a domain that it restores only when the guest runs. So another
//! program of QEMU's opens the images, `qemu-storage-daemon`: the files that the waiting QEMU has
//! open, through its descriptors, with the options by which QEMU has opened them. As long as QEMU
//! waits for its guest, its images are inactive: it has no lock on them, and keeps nothing of them
//! that it does not read again when it activates them, after *commit*. The daemon has ended then.
//!
//! The daemon ends with this program (`setpriv --pdeathsig`), so that it never keeps its locks.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use error_reporter::Report;
use hikkoshi_wire::text::one_line;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use thiserror::Error;

use crate::disks::nbd::HANDSHAKE_LIMIT_SINCE;
use crate::qmp::Version;

/// The program.
const PROGRAM: &str = "qemu-storage-daemon";

/// How long it may take to open the images.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it may take to write what it holds to the images, and to close them. The guest is
/// paused, and the disks were flushed every second.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for it when it was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// How often to look whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The beginning of what an NBD server sends first.
const GREETING: [u8; 8] = *b"NBDMAGIC";

/// How much of its messages is kept, in bytes: the last ones.
const MAX_WRITTEN: usize = 4096;

/// The storage daemon does not serve the disks.
#[derive(Debug, Error)]
pub(crate) enum StorageDaemonError {
    /// It was not started.
    #[error(
        "starting {PROGRAM}, which serves the disks of a libvirt domain while they are copied \
         (install 'setpriv', which is part of util-linux)"
    )]
    Start(#[source] io::Error),
    /// It has ended.
    #[error(
        "{PROGRAM}, which serves the disks of a libvirt domain while they are copied, has ended \
         ({status}{written}). It is part of QEMU: Debian 12 has it in qemu-system-common, Debian 13 in \
         qemu-utils"
    )]
    Ended {
        /// How.
        status: ExitStatus,
        /// What it has written, after a colon.
        written: String,
    },
    /// It does not begin to serve, or does not end.
    #[error("{PROGRAM} {what} within {} s", after.as_secs())]
    TimedOut {
        /// What it does not do.
        what: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// Its process cannot be reached.
    #[error("ending {PROGRAM}")]
    End(#[source] io::Error),
}

/// A disk to serve.
#[derive(Debug)]
pub(super) struct ServedDisk {
    /// The options of its image (`blockdev-add`), without a name.
    pub(super) options: Value,
    /// The name of the export, and of the block node.
    pub(super) name: String,
}

/// The running daemon. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct StorageDaemon {
    process: Child,
    /// Reads its messages until it ends.
    messages: Option<JoinHandle<Vec<u8>>>,
}

impl StorageDaemon {
    /// Starts a daemon that serves these disks on this socket.
    pub(super) fn start(
        listener: UnixListener,
        disks: &[ServedDisk],
    ) -> Result<Self, StorageDaemonError> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", PROGRAM]);
        for disk in disks {
            let mut node = disk.options.clone();
            node["node-name"] = disk.name.as_str().into();
            command.arg("--blockdev").arg(node.to_string());
        }
        // Its standard input is the socket.
        let mut server = json!({ "addr": { "type": "fd", "str": "0" }, "max-connections": 0 });
        if version().is_some_and(|version| version >= HANDSHAKE_LIMIT_SINCE) {
            server["handshake-max-seconds"] = json!(0);
        }
        command.arg("--nbd-server").arg(server.to_string());
        for ServedDisk { name, .. } in disks {
            let export = json!({
                "id": name, "type": "nbd", "node-name": name, "name": name, "writable": true,
            });
            command.arg("--export").arg(export.to_string());
        }
        command
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let process = command.spawn().map_err(StorageDaemonError::Start)?;
        Self::of_process(process)
    }

    fn of_process(process: Child) -> Result<Self, StorageDaemonError> {
        let mut daemon = Self {
            process,
            messages: None,
        };
        if let Some(stderr) = daemon.process.stderr.take() {
            let thread = thread::Builder::new().name("dst-disk-daemon".into());
            let thread = thread.spawn(move || last_written(stderr));
            daemon.messages = Some(thread.map_err(StorageDaemonError::Start)?);
        }
        Ok(daemon)
    }

    /// Waits until it greets on this connection: it has opened all images then.
    pub(super) fn wait_serving(
        &mut self,
        mut connection: UnixStream,
    ) -> Result<(), StorageDaemonError> {
        let limit = connection.set_read_timeout(Some(START_TIMEOUT));
        let mut greeting = [0; GREETING.len()];
        let read = limit.and_then(|()| connection.read_exact(&mut greeting));
        if read.is_ok() && greeting == GREETING {
            return Ok(());
        }
        // It has closed the connection because it ends.
        match self.wait(Duration::from_secs(2))? {
            Some(status) => Err(self.ended(status)),
            None => Err(StorageDaemonError::TimedOut {
                what: "has not begun to serve",
                after: START_TIMEOUT,
            }),
        }
    }

    /// Ends it. Everything that was written is in the images then.
    pub(super) fn end(mut self) -> Result<(), StorageDaemonError> {
        let signalled = kill_process(Pid::from_child(&self.process), Signal::TERM);
        signalled.map_err(|error| StorageDaemonError::End(error.into()))?;
        match self.wait(END_TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.ended(status)),
            None => Err(StorageDaemonError::TimedOut {
                what: "has not ended",
                after: END_TIMEOUT,
            }),
        }
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, StorageDaemonError> {
        let began = Instant::now();
        loop {
            match self.process.try_wait().map_err(StorageDaemonError::End)? {
                Some(status) => return Ok(Some(status)),
                None if began.elapsed() >= limit => return Ok(None),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn ended(&mut self, status: ExitStatus) -> StorageDaemonError {
        let messages = self.messages.take();
        let written = messages.and_then(|thread| thread.join().ok());
        let written = String::from_utf8_lossy(written.as_deref().unwrap_or_default()).into_owned();
        let written = one_line(written.trim());
        let written = match written.is_empty() {
            true => String::new(),
            false => format!(": {written}"),
        };
        StorageDaemonError::Ended { status, written }
    }
}

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        // It has ended, or is not needed any more.
        let _ = self.process.kill();
        match self.wait(KILL_TIMEOUT) {
            Ok(Some(_)) => {}
            // It waits for a disk, and cannot use its images any more when that has answered.
            Ok(None) => tracing::warn!("{PROGRAM} was killed, and has not ended yet"),
            Err(error) => tracing::warn!(error = %Report::new(&error), "killing {PROGRAM}"),
        }
    }
}

/// The version of the program. `None`: it is not installed, for instance, which starting it
/// reports.
fn version() -> Option<Version> {
    let output = Command::new(PROGRAM)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    parse_version(&String::from_utf8_lossy(&output.ok()?.stdout))
}

fn parse_version(text: &str) -> Option<Version> {
    let (_, rest) = text.split_once(" version ")?;
    let numbers = rest.split(|char: char| !char.is_ascii_digit() && char != '.');
    let mut numbers = numbers.into_iter().next()?.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(Version::new(next()?, next()?, next()?))
}

/// The last that comes from here before it ends.
fn last_written(mut from: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut read = [0; MAX_WRITTEN];
    loop {
        match from.read(&mut read) {
            Ok(0) => return kept,
            Ok(length) => {
                kept.extend_from_slice(read.get(..length).unwrap_or_default());
                kept.drain(..kept.len().saturating_sub(MAX_WRITTEN));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_version_is_read() {
        let of = |text: &str| parse_version(text);
        let debian = "qemu-storage-daemon version 7.2.17 (Debian 1:7.2+dfsg-7+deb12u13)\nCopyright";
        assert_eq!(of(debian), Some(Version::new(7, 2, 17)));
        let bare = "qemu-storage-daemon version 10.0.2\n";
        assert_eq!(of(bare), Some(Version::new(10, 0, 2)));
        for other in [
            "",
            "qemu-storage-daemon version ",
            "qemu-storage-daemon version 10",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn the_last_of_its_messages_is_kept() {
        assert_eq!(last_written(&b"short"[..]), b"short");
        let long = [vec![b'a'; 3 * MAX_WRITTEN], b"the end".to_vec()].concat();
        let kept = last_written(&*long);
        assert_eq!(kept.len(), MAX_WRITTEN);
        assert!(kept.ends_with(b"aathe end"));
    }

    #[test]
    fn it_is_killed_if_it_is_not_needed_and_reported_with_its_messages_if_it_ends() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stderr(Stdio::piped());
            StorageDaemon::of_process(command.spawn().unwrap()).unwrap()
        };
        let began = Instant::now();
        // It does not end by itself, and writes more than a pipe holds.
        drop(run("trap '' TERM; exec sleep 60"));
        let mut ended = run("seq 100000 >&2; echo no such image >&2; exit 1");
        let status = ended
            .wait(Duration::from_secs(30))
            .unwrap()
            .expect("it writes for ever");
        let text = ended.ended(status).to_string();
        assert!(text.contains("no such image"), "{text}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
