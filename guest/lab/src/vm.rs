//! A running machine.

use crate::ram::PreparedRam;
use crate::{
    Console, Disk, Lab, LabError, Namespace, Qmp, Ready, Report, Slow, Throttle, Verdict, VmConfig,
    initramfs, kernel, spawn,
};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Emulated, on a machine that may be busy with other guests: tens of times what it takes.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
/// QEMU opens its sockets at once or never.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(2);

/// What the guest's kernel is told, whatever the workload: results on the serial line and nothing
/// else, an end instead of a hang after a panic, no alarm when a page is long on its way,
/// memory of a DIMM put to use, and no test of the timer: an emulated one on a busy machine may not
/// tick within the few milliseconds that the test gives it, and the kernel panics.
const KERNEL_WORDS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 nowatchdog no_timer_check \
     rcupdate.rcu_cpu_stall_suppress=1 memhp_default_state=online_movable";

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

impl VmConfig {
    /// Starts the machine; `name` is for messages and must be new in its lab.
    ///
    /// # Errors
    /// When something is not set up, or QEMU ends; then with what it said.
    pub fn start(&self, lab: &Lab, name: &str) -> Result<Vm, LabError> {
        let ram = PreparedRam::new(&self.ram, lab, name, self.ram_directory.as_deref())?;
        let at = |what: &str| lab.folder().join(format!("{name}.{what}"));
        let (qmp_path, stderr_path) = (at("qmp"), at("stderr"));
        // QEMU calls us, so that not a line and not an event is lost.
        let console_listener = listen(&at("console"))?;
        let harness_listener = listen(&at("harness"))?;
        let stderr =
            File::create(&stderr_path).map_err(LabError::file("creating", &stderr_path))?;

        let mut command = Command::new(self.version.runner()?);
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-accel", "tcg,thread=multi"])
            .args(["-name", name])
            .args([
                "-machine",
                &format!("{}{}", self.machine, ram.machine_suffix),
            ])
            .args(["-smp", &self.cpus.to_string()])
            .args(&ram.arguments)
            .arg("-kernel")
            .arg(kernel()?)
            .arg("-initrd")
            .arg(match &self.initramfs {
                Some(path) => path.clone(),
                None => initramfs()?,
            })
            .args(["-append", &self.kernel_command_line()])
            .args([
                "-qmp",
                &format!("unix:{},server=on,wait=off", qmp_path.display()),
            ])
            .args(["-qmp", &format!("unix:{}", at("harness").display())])
            .args([
                "-chardev",
                &format!("socket,id=console,path={}", at("console").display()),
            ])
            .args(["-serial", "chardev:console"]);
        if let Some(nic) = &self.nic {
            command
                .args([
                    "-netdev",
                    &format!("tap,id=net0,ifname={},script=no,downscript=no", nic.tap),
                ])
                .args([
                    "-device",
                    &format!("virtio-net-pci,netdev=net0,mac={},romfile=", nic.mac),
                ]);
        }
        for (number, disk) in self.disks.iter().enumerate() {
            command.args(disk.arguments(number));
        }
        if self.incoming {
            command.args(["-incoming", "defer"]);
        }
        command
            .args(&self.extra)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        if let Some(namespace) = &self.namespace {
            namespace.enter(&mut command);
        }

        let child = spawn::spawn(command)?;
        let pid = child.id();
        let mut starting = Starting {
            name,
            stderr: &stderr_path,
            child: Some(child),
        };
        if let Some(throttle) = &self.throttle {
            throttle.take(pid)?;
        }
        let output = starting.accept(&console_listener, "its console")?;
        let monitor = starting.accept(&harness_listener, "its monitor")?;
        let input = output
            .try_clone()
            .map_err(LabError::file("using", at("console")))?;
        let console = self.console.clone().unwrap_or_default();
        console.follow(name, output)?;
        // The greeting comes when QEMU is through with its command line, or QEMU ends.
        let qmp = match Qmp::new(name, monitor) {
            Ok(qmp) => qmp,
            Err(error) => {
                starting.still_running("it greets")?;
                return Err(error);
            }
        };
        let Some(child) = starting.finish() else {
            unreachable!("the child is taken here only");
        };
        Ok(Vm {
            name: name.to_owned(),
            pid: child.id(),
            process: Mutex::new(child),
            qmp_path,
            stderr_path,
            qmp,
            console,
            input: Mutex::new(input),
            ram,
            _disks: self.disks.clone(),
            _throttle: self.throttle.clone(),
            _namespace: self.namespace.clone(),
            _lab: lab.clone(),
        })
    }

    fn kernel_command_line(&self) -> String {
        let mut line = format!("{KERNEL_WORDS} {}", self.workload.command_line());
        if let Some(nic) = &self.nic {
            line.push_str(" hk.net=");
            line.push_str(&nic.address);
        }
        line
    }
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
        last_words(&self.stderr_path)
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
    pub fn slow(&self, timeout: Duration) -> Result<Slow, LabError> {
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
    pub fn wait_sign_of_life(&self, timeout: Duration) -> Result<(), LabError> {
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

/// A QEMU that has not opened its sockets yet; killed if that comes to nothing.
struct Starting<'a> {
    name: &'a str,
    stderr: &'a Path,
    child: Option<Child>,
}

impl Starting<'_> {
    fn accept(&mut self, listener: &UnixListener, what: &str) -> Result<UnixStream, LabError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok((stream, _)) = listener.accept() {
                stream
                    .set_nonblocking(false)
                    .map_err(LabError::file("using the socket of", self.name))?;
                return Ok(stream);
            }
            self.still_running(what)?;
            if Instant::now() >= deadline {
                return Err(LabError::TimedOut {
                    what: format!("QEMU {} to open {what}", self.name),
                    after: START_TIMEOUT,
                    seen: last_words(self.stderr),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    fn still_running(&mut self, what: &str) -> Result<(), LabError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.child.as_mut().map(Child::try_wait) {
                Some(Ok(Some(status))) => {
                    return Err(LabError::Ended {
                        vm: self.name.to_owned(),
                        status: status.to_string(),
                        waiting_for: format!("it was starting, before {what}"),
                        stderr: last_words(self.stderr),
                    });
                }
                // QEMU closes its sockets a moment before it ends; on a busy machine, a long one.
                _ if what == "it greets" && Instant::now() < deadline => std::thread::sleep(POLL),
                _ => return Ok(()),
            }
        }
    }

    /// Started: from now on somebody else ends it.
    fn finish(mut self) -> Option<Child> {
        self.child.take()
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn listen(path: &Path) -> Result<UnixListener, LabError> {
    let listener = UnixListener::bind(path).map_err(LabError::file("listening at", path))?;
    listener
        .set_nonblocking(true)
        .map_err(LabError::file("listening at", path))?;
    Ok(listener)
}

fn last_words(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().rev().take(20).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
