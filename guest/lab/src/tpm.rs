//! A TPM emulator, swtpm, for a machine's `tpm-crb`.

use crate::artifacts::swtpm;
use crate::{LabError, spawn};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the emulator may take to listen, which it does at once or never.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running emulator for one machine. Killed on drop.
#[derive(Debug)]
pub struct TpmEmulator {
    arguments: Vec<String>,
    process: Child,
}

impl TpmEmulator {
    /// Starts an emulator whose state, new and empty, and socket are in `folder`, which is created.
    /// The machine's device gets the name `id`.
    ///
    /// # Errors
    /// When swtpm was not set up, or does not start.
    pub fn start(folder: &Path, id: &str) -> Result<Self, LabError> {
        fs::create_dir_all(folder).map_err(LabError::file("creating the folder", folder))?;
        let socket = folder.join("control");
        let mut command = Command::new(swtpm()?);
        command
            .args(["socket", "--tpm2", "--tpmstate"])
            .arg(format!("dir={}", folder.display()))
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let emulator = Self {
            arguments: [
                "-chardev".to_owned(),
                format!("socket,id={id}-chardev,path={}", socket.display()),
                "-tpmdev".to_owned(),
                format!("emulator,id={id}-tpm,chardev={id}-chardev"),
                "-device".to_owned(),
                format!("tpm-crb,id={id},tpmdev={id}-tpm"),
            ]
            .into(),
            process: spawn::spawn(command)?,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while !socket.exists() {
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: "the TPM emulator to listen".to_owned(),
                    after: START_TIMEOUT,
                    seen: String::new(),
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(emulator)
    }

    /// QEMU's arguments for the device.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }
}

impl Drop for TpmEmulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
