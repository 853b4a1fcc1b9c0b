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
use std::thread;
use std::time::{Duration, Instant};

use hikkoshi_wire::text::one_line;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use thiserror::Error;

/// The program.
const PROGRAM: &str = "qemu-storage-daemon";

/// How long it may take to open the images.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it may take to write what it holds to the images, and to close them.
const END_TIMEOUT: Duration = Duration::from_secs(120);

/// How often to look whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The beginning of what an NBD server sends first.
const GREETING: [u8; 8] = *b"NBDMAGIC";

/// The most of its messages that an error has.
const MAX_WRITTEN: u64 = 4096;

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
         ({status}{written}). It is part of QEMU: Debian has it in qemu-system-common"
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
pub(super) struct StorageDaemon(Child);

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
        let server = json!({ "addr": { "type": "fd", "str": "0" }, "max-connections": 0 });
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
        let child = command.spawn().map_err(StorageDaemonError::Start)?;
        Ok(Self(child))
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
        let signalled = kill_process(Pid::from_child(&self.0), Signal::TERM);
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
            match self.0.try_wait().map_err(StorageDaemonError::End)? {
                Some(status) => return Ok(Some(status)),
                None if began.elapsed() >= limit => return Ok(None),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn ended(&mut self, status: ExitStatus) -> StorageDaemonError {
        let mut written = String::new();
        if let Some(stderr) = self.0.stderr.take() {
            // What is not text is not shown.
            let _ = stderr.take(MAX_WRITTEN).read_to_string(&mut written);
        }
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
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
