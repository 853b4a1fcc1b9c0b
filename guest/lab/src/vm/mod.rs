//! A running machine.

mod diagnosis;
mod evict;
mod plug;
mod process;
mod ram_block;
mod sockets;
mod start;

pub(crate) use self::process::VmProcess;
pub use ram_block::RamBlock;
pub(crate) use sockets::MachineSockets;
pub use start::{ExpectedVm, template};
pub(crate) use start::{KERNEL_ARGUMENTS, listen};

use crate::device::PreparedDevice;
use crate::ram::PreparedRam;
use crate::{
    Clocks, Console, Devices, Disk, Fault, GuestReport, Lab, LabError, MemoryLimit, Namespace, Qmp,
    Ready, Slow, Task, Throttle, Totals, Used, Verdict,
};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Boot time limit: ten times what the slowest guest needs, an emulated Debian, for a busy host.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(2);

/// A QEMU process with the test guest, or waiting for one. Killed on drop.
#[derive(Debug)]
pub struct Vm {
    name: String,
    process: Mutex<VmProcess>,
    pid: u32,
    qmp_path: PathBuf,
    stderr_path: PathBuf,
    qmp: Qmp,
    console: Console,
    input: Mutex<UnixStream>,
    port: Option<UnixStream>,
    // Dropped after the process has ended: removes its memory.
    ram: PreparedRam,
    hot_cpus: u32,
    _devices: Vec<PreparedDevice>,
    _disks: Vec<Disk>,
    _throttle: Option<Throttle>,
    _memory_limit: Option<MemoryLimit>,
    _namespace: Option<Namespace>,
    _lab: Lab,
}

impl Vm {
    /// The machine's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The QMP socket for the program under test; nothing else connects to it.
    pub fn qmp_path(&self) -> &Path {
        &self.qmp_path
    }

    /// The test's own QMP connection.
    pub fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    /// The guest's console.
    pub fn console(&self) -> &Console {
        &self.console
    }

    /// The named RAM files, in QEMU's order.
    pub fn ram_files(&self) -> &[PathBuf] {
        &self.ram.files
    }

    /// QEMU's standard error so far.
    pub fn stderr(&self) -> String {
        stderr_tail(&self.stderr_path)
    }

    /// Waits until the workload has filled its memory and starts.
    ///
    /// # Errors
    /// When the guest does not boot, or fails.
    pub fn wait_ready(&self) -> Result<Ready, LabError> {
        self.wait_report(
            "the workload to start",
            0,
            BOOT_TIMEOUT,
            |report| match report {
                GuestReport::Ready(ready) => Some(Ok(ready.clone())),
                GuestReport::Failed(reason) => Some(Err(reason.clone())),
                _ => None,
            },
        )?
        .map_err(|reason| self.failed("the workload to start", &reason))
    }

    /// The error for something that does not come, because the guest has said why.
    fn failed(&self, what: &str, reason: &str) -> LabError {
        LabError::TimedOut {
            what: format!("{what}; it failed: {reason}"),
            after: Duration::ZERO,
            seen: self.console.tail(),
        }
    }

    /// Waits until the guest has printed a line on this machine.
    ///
    /// # Errors
    /// When it has printed none within `timeout`.
    pub fn wait_output_since_boot(&self, timeout: Duration) -> Result<(), LabError> {
        self.wait_report("the guest's first line", 0, timeout, |_| Some(()))
    }

    /// Waits for a report from this machine, from console line `first` on.
    ///
    /// # Errors
    /// When it does not come within `timeout`, with what QEMU and its threads were doing; or when
    /// QEMU has ended.
    pub fn wait_report<T>(
        &self,
        what: &str,
        first: usize,
        timeout: Duration,
        mut wanted: impl FnMut(&GuestReport) -> Option<T>,
    ) -> Result<T, LabError> {
        let deadline = Instant::now() + timeout;
        let mut from = first;
        loop {
            let until = self.console.len();
            // Waits in short steps, to detect early that QEMU has ended.
            let left = deadline.saturating_duration_since(Instant::now());
            let turn = left.min(Duration::from_millis(500));
            if let Some(found) = self.wait_report_or_none(what, from, turn, &mut wanted)? {
                return Ok(found);
            }
            if left.is_zero() {
                let console = self.console.tail();
                return Err(LabError::TimedOut {
                    what: format!("{what} on {}", self.name),
                    after: timeout,
                    seen: format!("{console}\n{}\n{}", self.stderr(), self.diagnosis()),
                });
            }
            // Lines before `until` have been checked.
            from = until.max(from);
        }
    }

    /// Waits for a report from this machine, from console line `first` on. `None`: it did not come
    /// within `timeout`.
    ///
    /// # Errors
    /// When QEMU has ended.
    pub fn wait_report_or_none<T>(
        &self,
        what: &str,
        first: usize,
        timeout: Duration,
        mut wanted: impl FnMut(&GuestReport) -> Option<T>,
    ) -> Result<Option<T>, LabError> {
        let found = self.console.wait_for(what, first, timeout, |line| {
            (*line.vm == *self.name)
                .then(|| wanted(&line.report))
                .flatten()
        });
        match (found, self.exit_status()) {
            (Err(LabError::TimedOut { .. }), Some(status)) => Err(LabError::Ended {
                vm: self.name.clone(),
                status: status.to_string(),
                waiting_for: format!("waiting for {what}"),
                stderr: format!("{}\n{}", self.console.tail(), self.stderr()),
            }),
            (Err(LabError::TimedOut { .. }), None) => Ok(None),
            (found, _) => found.map(Some),
        }
    }

    /// Sends the workload a command (guest/README.md).
    ///
    /// # Errors
    /// When QEMU has ended.
    pub fn send(&self, line: &str) -> Result<(), LabError> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input
            .write_all(format!("{line}\n").as_bytes())
            .map_err(LabError::file(
                "writing to the console of",
                self.name.as_str(),
            ))
    }

    /// Makes the guest check every page on this machine, and returns its verdict.
    ///
    /// # Errors
    /// When there is none within `timeout`.
    pub fn sweep(&self, timeout: Duration) -> Result<Verdict, LabError> {
        let first = self.console.len();
        self.send("sweep")?;
        self.wait_report("a verdict", first, timeout, |report| match report {
            GuestReport::Verdict(verdict) => Some(*verdict),
            _ => None,
        })
    }

    /// Makes the guest free the memory of [`Workload::with_returned_memory`], and returns the
    /// number of its pages. A balloon may return them to the host later.
    ///
    /// [`Workload::with_returned_memory`]: crate::Workload::with_returned_memory
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn free(&self, timeout: Duration) -> Result<u64, LabError> {
        let first = self.console.len();
        self.send("free")?;
        self.wait_report(
            "memory to be freed",
            first,
            timeout,
            |report| match report {
                GuestReport::Freed(pages) => Some(*pages),
                _ => None,
            },
        )
    }

    /// Makes the guest use as much memory again.
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn use_again(&self, timeout: Duration) -> Result<Used, LabError> {
        let first = self.console.len();
        self.send("use")?;
        let what = "memory to be used again";
        self.wait_report(what, first, timeout, |report| match report {
            GuestReport::Used(used) => Some(*used),
            _ => None,
        })
    }

    /// Returns the times of the guest's slow accesses since the last call; the guest must run here.
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn slow_accesses(&self, timeout: Duration) -> Result<Slow, LabError> {
        let first = self.console.len();
        self.send("slow")?;
        self.wait_report(
            "the guest's slow accesses",
            first,
            timeout,
            |report| match report {
                GuestReport::Slow(slow) => Some(slow.clone()),
                _ => None,
            },
        )
    }

    /// Asks the nano guest for the time; it must run here.
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn clocks(&self, timeout: Duration) -> Result<Clocks, LabError> {
        let first = self.console.len();
        self.send("clocks")?;
        self.wait_report(
            "the guest's clocks",
            first,
            timeout,
            |report| match report {
                GuestReport::Clocks(clocks) => Some(*clocks),
                _ => None,
            },
        )
    }

    /// Asks the nano guest what it has counted; it must run here.
    ///
    /// # Errors
    /// When there is no answer within `timeout`.
    pub fn totals(&self, timeout: Duration) -> Result<Totals, LabError> {
        let first = self.console.len();
        self.send("totals")?;
        self.wait_report("totals", first, timeout, |report| match report {
            GuestReport::Totals(totals) => Some(*totals),
            _ => None,
        })
    }

    /// Asks the nano guest what it has counted of each worker; it must run here.
    ///
    /// # Errors
    /// When an answer does not come within `timeout`.
    pub fn tasks(&self, workers: u64, timeout: Duration) -> Result<Vec<Task>, LabError> {
        let first = self.console.len();
        self.send("tasks")?;
        let mut tasks = Vec::new();
        self.wait_report("tasks", first, timeout, |report| {
            // A line may be seen twice.
            if let GuestReport::Task(task) = report
                && task.number == tasks.len() as u64
            {
                tasks.push(task.clone());
            }
            (tasks.len() as u64 == workers).then_some(())
        })?;
        Ok(tasks)
    }

    /// Asks the nano guest for the times of the page faults that it has noted; it must run here.
    ///
    /// # Errors
    /// When there is no whole answer within `timeout`.
    pub fn faults(&self, timeout: Duration) -> Result<Vec<Fault>, LabError> {
        let first = self.console.len();
        self.send("faults")?;
        let what = "the faults that the guest has noted";
        let noted = self.wait_report(what, first, timeout, |report| match report {
            GuestReport::Noted(faults) => Some(*faults),
            _ => None,
        })?;
        let lines = self.console.since(first);
        let faults = lines.iter().filter_map(|line| match line.report {
            GuestReport::Fault(fault) if *line.vm == self.name => Some(fault),
            _ => None,
        });
        Ok(faults.take(usize::try_from(noted).unwrap_or(0)).collect())
    }

    /// Makes the guest use each of its devices; it must run here.
    ///
    /// # Errors
    /// When a device fails, or there is no answer within `timeout`.
    pub fn devices(&self, timeout: Duration) -> Result<Devices, LabError> {
        let first = self.console.len();
        self.send("devices")?;
        let what = "the guest's devices";
        self.wait_report(what, first, timeout, |report| match report {
            GuestReport::Devices(devices) => Some(Ok(devices.clone())),
            GuestReport::Failed(reason) => Some(Err(reason.clone())),
            _ => None,
        })?
        .map_err(|reason| self.failed(what, &reason))
    }

    /// The host's end of the virtio-serial port, if the machine has one.
    pub fn port(&self) -> Option<&UnixStream> {
        self.port.as_ref()
    }

    /// Waits until the guest prints another line on this machine.
    ///
    /// # Errors
    /// When it prints none within `timeout`.
    pub fn wait_output(&self, timeout: Duration) -> Result<(), LabError> {
        self.wait_report("output of the guest", self.console.len(), timeout, |_| {
            Some(())
        })
    }

    /// QEMU's status of the guest: `running`, `paused`, `inmigrate`, `postmigrate`, ….
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn status(&self) -> Result<String, LabError> {
        let answer = self.qmp.execute("query-status", json!({}))?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    /// Whether KVM runs the guest, as QEMU says.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn uses_kvm(&self) -> Result<bool, LabError> {
        if let Ok(answer) = self.qmp.execute("query-accelerators", json!({})) {
            return Ok(answer["enabled"] == "kvm");
        }
        // Before QEMU 11.1.
        let answer = self.qmp.execute("query-kvm", json!({}))?;
        Ok(answer["enabled"].as_bool().unwrap_or_default())
    }

    /// Pauses the guest.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn stop(&self) -> Result<(), LabError> {
        self.qmp.execute("stop", json!({})).map(drop)
    }

    /// Resumes the guest.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn cont(&self) -> Result<(), LabError> {
        self.qmp.execute("cont", json!({})).map(drop)
    }

    /// Makes QEMU quit, so that pending writes to its disks are completed.
    ///
    /// # Errors
    /// When it refuses, or does not quit within `timeout`.
    pub fn quit(&self, timeout: Duration) -> Result<ExitStatus, LabError> {
        // QEMU may end before its answer has arrived.
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

    /// QEMU's exit status, if it has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process().try_wait().ok().flatten()
    }

    /// Waits until QEMU has ended.
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

    fn process(&self) -> MutexGuard<'_, VmProcess> {
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
