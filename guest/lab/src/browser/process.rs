//! Chromium's processes.

use crate::artifacts::chromium;
use crate::{Lab, LabError, spawn};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long Chromium may take to end by itself: measured are 50 ms.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of its log in a message.
const LOG_IN_MESSAGE: usize = 2000;

/// Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
const REDIRECT: &str = r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#;

const FLAGS: [&str; 14] = [
    "--remote-debugging-pipe",
    // Root has no sandbox; the pages are the tests' own.
    "--no-sandbox",
    "--disable-gpu",
    // Not in /dev/shm, where the guests' memory is.
    "--disable-dev-shm-usage",
    "--disable-crash-reporter",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    // Nothing outside of this machine is looked up, also not by a hint such as `preconnect`.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE ::1",
    // The same picture on each machine.
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--lang=en-US",
    "about:blank",
];

/// The processes, in a PID namespace of their own: when the first one ends, the kernel ends the
/// others and reaps them.
#[derive(Debug)]
pub(super) struct Process {
    process: Child,
    folder: PathBuf,
    _lab: Lab,
}

impl Process {
    /// Starts Chromium, and returns both ends of its pipes.
    pub(super) fn start(lab: &Lab) -> Result<(Self, ChildStdin, ChildStdout), LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = lab.folder().join(format!("browser-{number}"));
        fs::create_dir(&folder).map_err(LabError::file("creating the folder", &folder))?;
        let log = Self::log(&folder);
        let log = File::create(&log).map_err(LabError::file("creating", log))?;

        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", REDIRECT, "sh"])
            .arg(chromium()?)
            .arg(format!("--user-data-dir={}", folder.display()))
            .args(FLAGS)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            // There is no desktop. Chromium would look for one.
            .env("DBUS_SESSION_BUS_ADDRESS", "disabled:")
            .env("DBUS_SYSTEM_BUS_ADDRESS", "disabled:")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        for variable in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
            command.env(variable, &folder);
        }
        let mut process = spawn::spawn(command)?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let this = Self {
            process,
            folder,
            _lab: lab.clone(),
        };
        match pipes {
            Some((stdin, stdout)) => Ok((this, stdin, stdout)),
            None => Err(this.failed("it has no pipes".to_owned())),
        }
    }

    fn log(folder: &Path) -> PathBuf {
        folder.join("chromium.log")
    }

    /// The error of the first commands, with the reason that Chromium has logged.
    pub(super) fn explain(&self, error: LabError) -> LabError {
        self.failed(error.to_string())
    }

    fn failed(&self, status: String) -> LabError {
        let log = fs::read(Self::log(&self.folder)).unwrap_or_default();
        let end = &log[log.len().saturating_sub(LOG_IN_MESSAGE)..];
        LabError::Command {
            command: "starting Chromium".to_owned(),
            status,
            stderr: String::from_utf8_lossy(end).trim().to_owned(),
        }
    }

    /// Waits until Chromium has ended, which it does when its pipe is closed; or else kills it.
    pub(super) fn end(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        while let Ok(None) = self.process.try_wait() {
            if Instant::now() >= deadline {
                self.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Kills Chromium, so that `unshare` reaps it and ends.
    fn kill(&mut self) {
        if !self.signal(Signal::KILL) {
            let _ = self.process.kill();
        }
    }

    /// Sends a signal to the namespace's first process, the child of `unshare`.
    fn signal(&self, signal: Signal) -> bool {
        let unshare = self.process.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        let first = children.split(' ').next().and_then(|pid| pid.parse().ok());
        first
            .and_then(Pid::from_raw)
            .is_some_and(|first| kill_process(first, signal).is_ok())
    }

    /// Makes Chromium hang.
    #[cfg(test)]
    pub(super) fn stop(&self) {
        assert!(self.signal(Signal::STOP));
    }
}
