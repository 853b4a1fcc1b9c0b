//! passt, which connects a guest to the host's network without privileges.

use crate::artifacts::passt;
use crate::{LabError, spawn};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to listen, which it does at once or never.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How QEMU is connected to passt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PasstMode {
    /// QEMU starts it (`-netdev passt`, from 10.1 on), and sends it frames.
    Stream,
    /// QEMU starts it. It reads and writes the guest's memory itself, which must be shared.
    VhostUser,
    /// It runs already, and QEMU connects to its socket (`-netdev stream`).
    Socket,
}

/// A running passt. Killed on drop.
#[derive(Debug)]
pub(crate) struct Passt {
    process: Child,
}

impl Passt {
    /// QEMU's network backend `id`, and the process that it needs. The socket is at `socket`.
    pub(crate) fn prepare(
        mode: PasstMode,
        id: &str,
        socket: &Path,
    ) -> Result<(String, Option<Self>), LabError> {
        let program = passt()?;
        let started_by_qemu = format!("passt,id={id},quiet=on,path={}", program.display());
        match mode {
            PasstMode::Stream => Ok((started_by_qemu, None)),
            PasstMode::VhostUser => Ok((format!("{started_by_qemu},vhost-user=on"), None)),
            PasstMode::Socket => {
                let path = socket.display();
                let stream = format!("stream,id={id},server=off,addr.type=unix,addr.path={path}");
                Ok((stream, Some(Self::start(&program, socket)?)))
            }
        }
    }

    fn start(program: &Path, socket: &Path) -> Result<Self, LabError> {
        let mut command = Command::new(program);
        command
            .args(["--foreground", "--quiet", "--socket"])
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let passt = Self {
            process: spawn::spawn(command)?,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while !socket.exists() {
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: "passt to listen".to_owned(),
                    after: START_TIMEOUT,
                    seen: String::new(),
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(passt)
    }
}

impl Drop for Passt {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
