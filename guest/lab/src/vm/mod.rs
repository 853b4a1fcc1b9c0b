//! A running machine.

mod start;

use crate::ram::PreparedRam;
use crate::{Console, Disk, Lab, LabError, Namespace, Qmp, Ready, Report, Slow, Throttle, Verdict};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Emulated, on a machine that may be busy with other guests: tens of times what it takes.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);

/// A QEMU process with the test guest, or waiting for one. Killed on drop.
#[derive(Debug)]
pub struct Vm {
    name: String,
    process: Mutex<Child>,
    pid: u32,
    qmp_path: PathBuf,
    stderr_path: PathBuf,
    qmp: Qmp,
    console: Console,
    input: Mutex<UnixStream>,
    // After the process in `drop`: its memory is removed when it is gone.
    ram: PreparedRam,
    _disks: Vec<Disk>,
    _throttle: Option<Throttle>,
    _namespace: Option<Namespace>,
    _lab: Lab,
}

impl Vm {
    /// The name given at its start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The QMP socket for the program under test; nobody else uses it.
    pub fn qmp_path(&self) -> &Path {
        &self.qmp_path
    }

    /// The harness's own QMP connection.
    pub fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    /// Where the guest's lines come.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// The RAM files that have a name, in QEMU's order.
    pub fn ram_files(&self) -> &[PathBuf] {
        &self.ram.files
    }

    /// What QEMU has said on its standard error.
    pub fn stderr(&self) -> String {
        stderr_tail(&self.stderr_path)
    }

    /// Waits until the workload has filled its memory and begins.
    ///
    /// # Errors
    /// When the guest does not get there, or fails.
    pub fn wait_ready(&self) -> Result<Ready, LabError> {
        self.wait_report(
            "the workload to begin",
            0,
            BOOT_TIMEOUT,
            |report| match report {
                Report::Ready(ready) => Some(Ok(ready.clone())),
                Report::Failed(reason) => Some(Err(reason.clone())),
                _ => None,
            },
        )?
        .map_err(|reason| LabError::TimedOut {
            what: format!("the workload to begin; it failed: {reason}"),
            after: Duration::ZERO,
            seen: self.console.tail(),
        })
    }

    /// Waits for a report of this machine, from console line `first` on.
    ///
    /// # Errors
    /// When none came within `timeout`, or QEMU ends.
    pub fn wait_report<T>(
        &self,
        what: &str,
        first: usize,
        timeout: Duration,
        mut wanted: impl FnMut(&Report) -> Option<T>,
    ) -> Result<T, LabError> {
        let deadline = Instant::now() + timeout;
        let mut from = first;
        loop {
            let until = self.console.len();
            // In short turns, to notice QEMU's end early.
            let left = deadline.saturating_duration_since(Instant::now());
            let turn = left.min(Duration::from_millis(500));
            let found = self.console.wait_for(what, from, turn, |line| {
                (*line.vm == *self.name)
                    .then(|| wanted(&line.report))
                    .flatten()
            });
            match found {
                Err(LabError::TimedOut { seen, .. }) if left.is_zero() => {
                    return Err(LabError::TimedOut {
                        what: format!("{what} on {}", self.name),
                        after: timeout,
                        seen: format!("{seen}\n{}", self.stderr()),
                    });
                }
                Err(LabError::TimedOut { .. }) => {}
                other => return other,
            }
            // Lines before `until` have been looked at.
            from = until.max(from);
            if let Some(status) = self.exit_status() {
                return Err(LabError::Ended {
                    vm: self.name.clone(),
                    status: status.to_string(),
                    waiting_for: format!("waiting for {what}"),
                    stderr: format!("{}\n{}", self.console.tail(), self.stderr()),
                });
            }
        }
    }

    /// Sends the workload a line: `sweep`, `stop`, `scan` or `slow`.
    ///
    /// # Errors
    /// When QEMU has gone.
    pub fn send(&self, line: &str) -> Result<(), LabError> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input
            .write_all(format!("{line}\n").as_bytes())
            .map_err(LabError::file(
                "writing to the console of",
                self.name.as_str(),
            ))
    }

    /// Has the guest check every page, here, now, and returns its verdict.
    ///
    /// # Errors
    /// When there is none within `timeout`.
    pub fn sweep(&self, timeout: Duration) -> Result<Verdict, LabError> {
        let first = self.console.len();
        self.send("sweep")?;
        self.wait_report("a verdict", first, timeout, |report| match report {
            Report::Verdict(verdict) => Some(*verdict),
            _ => None,
        })
    }

    /// Asks the guest, which runs here, how long its slow accesses took since it was last asked.
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn slow_accesses(&self, timeout: Duration) -> Result<Slow, LabError> {
        let first = self.console.len();
        self.send("slow")?;
        self.wait_report("its slow accesses", first, timeout, |report| match report {
            Report::Slow(slow) => Some(slow.clone()),
            _ => None,
        })
    }

    /// Waits until the guest prints another line here: it runs, and runs here.
    ///
    /// # Errors
    /// When it prints none within `timeout`.
    pub fn wait_output(&self, timeout: Duration) -> Result<(), LabError> {
        self.wait_report("a sign of life", self.console.len(), timeout, |_| Some(()))
    }

    /// QEMU's word for the guest's state: `running`, `paused`, `inmigrate`, `postmigrate`, ….
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn status(&self) -> Result<String, LabError> {
        let answer = self.qmp.execute("query-status", json!({}))?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    /// Stops the guest.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn stop(&self) -> Result<(), LabError> {
        self.qmp.execute("stop", json!({})).map(drop)
    }

    /// Lets the guest go on.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn cont(&self) -> Result<(), LabError> {
        self.qmp.execute("cont", json!({})).map(drop)
    }

    /// Has QEMU end by itself: what its disks still have to write is written.
    ///
    /// # Errors
    /// When it refuses, or does not end within `timeout`.
    pub fn quit(&self, timeout: Duration) -> Result<ExitStatus, LabError> {
        // QEMU may be gone before its answer has come.
        let refused = self.qmp.execute("quit", json!({})).err();
        self.wait_exit(timeout)
            .map_err(|error| refused.unwrap_or(error))
    }

    /// Kills QEMU, as a power cut would.
    pub fn kill(&self) {
        let mut process = self.process();
        let _ = process.kill();
        let _ = process.wait();
    }

    /// How QEMU ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process().try_wait().ok().flatten()
    }

    /// Waits for QEMU's end.
    ///
    /// # Errors
    /// When it still runs after `timeout`.
    pub fn wait_exit(&self, timeout: Duration) -> Result<ExitStatus, LabError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.exit_status() {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: format!("QEMU {} to end", self.name),
                    after: timeout,
                    seen: self.console.tail(),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let _ = writeln!(
                std::io::stderr(),
                "QEMU {}: console:\n{}\n{}",
                self.name,
                self.console.tail(),
                self.stderr()
            );
        }
    }
}

fn stderr_tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().rev().take(20).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
