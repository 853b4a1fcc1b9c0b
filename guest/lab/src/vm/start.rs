//! Starting a machine: QEMU's command line, and the connections to its console and monitor.

use super::process::VmProcess;
use super::{POLL, Vm, stderr_tail};
use crate::config::Accelerator;
use crate::device::PreparedDevice;
use crate::net::TapQueues;
use crate::ram::PreparedRam;
use crate::{Device, Lab, LabError, Nic, QemuVersion, Qmp, VmConfig, nano_kernel, spawn, tsc};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::socket_peercred;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time limit for QEMU to open its sockets, which it does at once or never.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Kernel arguments for every workload: reports on the serial line and nothing else, a reboot
/// instead of a hang after a panic, no watchdogs while a page takes long to arrive, memory of a
/// DIMM put online, no mitigations and no tests of cryptography, which make an emulated guest boot
/// more slowly, and no timer check: on a busy host an emulated timer may not tick within the
/// few milliseconds of that check, and the kernel would panic.
pub(crate) const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=1 panic=-1 nowatchdog no_timer_check \
     rcupdate.rcu_cpu_stall_suppress=1 memhp_default_state=online_movable mitigations=off \
     cryptomgr.notests";

/// The type of a processor of the default model.
const HOT_CPU: &str = "qemu64-x86_64-cpu";

impl VmConfig {
    /// Starts the machine; `name` is for messages and must be unique in its lab.
    ///
    /// # Errors
    /// When something is not set up, or QEMU ends; then with its standard error.
    pub fn start(&self, lab: &Lab, name: &str) -> Result<Vm, LabError> {
        let mut prepared = self.prepare(lab, name)?;
        let command = &mut prepared.command;
        let qmp = format!("unix:{},server=on,wait=off", prepared.qmp_path.display());
        command.args(["-qmp", &qmp]);
        if self.incoming {
            command.args(["-incoming", "defer"]);
        }
        let stderr = File::create(&prepared.stderr_path)
            .map_err(LabError::file("creating", &prepared.stderr_path))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        if let Some(namespace) = &self.namespace {
            namespace.enter(command);
        }
        let child = spawn::spawn(std::mem::replace(command, Command::new("")))?;
        let pid = child.id();
        prepared.process = Some(VmProcess::Child(child));
        if let Some(throttle) = &self.throttle {
            throttle.add_process(pid)?;
        }
        if let Some(limit) = &self.memory_limit {
            limit.add_process(pid)?;
        }
        prepared.connect(self, lab)
    }

    /// Prepares the machine, whose QEMU another program is to start: for a guest that moves there.
    ///
    /// # Errors
    /// When something is not set up.
    pub fn expect(&self, lab: &Lab, name: &str) -> Result<ExpectedVm, LabError> {
        Ok(ExpectedVm {
            prepared: self.prepare(lab, name)?,
            config: self.clone(),
            lab: lab.clone(),
        })
    }

    /// Makes the command line, except what depends on who starts QEMU, and all that it needs.
    pub(super) fn prepare(&self, lab: &Lab, name: &str) -> Result<PreparedVm, LabError> {
        let ram = PreparedRam::new(self, lab, name)?;
        let (firmware, flash) = self.firmware.prepare(lab, name)?;
        let devices = self.devices.iter().enumerate();
        let devices = devices
            .map(|(number, device)| device.prepare(lab, name, number))
            .collect::<Result<Vec<_>, _>>()?;
        let at = |what: &str| lab.folder().join(format!("{name}.{what}"));
        // QEMU connects to these sockets, so that no line and no event is lost.
        let console_listener = ConsoleListener(listen(&at("console"))?);
        let harness_listener = listen(&at("harness"))?;

        let mut command = Command::new(match &self.program {
            Some(program) => program.clone(),
            None => self.version.runner()?,
        });
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-accel", &self.accelerator()])
            .args(["-name", name])
            // The newest QEMU: a later one may not have what is deprecated.
            .args(match self.version {
                QemuVersion::V11_1 => &QemuVersion::WITHOUT_DEPRECATED[..],
                QemuVersion::V7_2 | QemuVersion::V10_0 => &[],
            })
            .args([
                "-machine",
                &format!("{}{flash}{}", self.machine, ram.machine_suffix),
            ])
            .args(self.processors())
            .args(&firmware)
            .args(&ram.arguments)
            .args(self.kernel_arguments()?)
            .args(["-append", &self.kernel_command_line()])
            .args(["-qmp", &format!("unix:{}", at("harness").display())])
            .args([
                "-chardev",
                &format!("socket,id=console,path={}", at("console").display()),
            ])
            .args(["-serial", "chardev:console"]);
        for (number, nic) in self.nics.iter().enumerate() {
            let queues = match &self.taps_opened_in {
                Some(namespace) => Some(TapQueues::open(namespace, &nic.tap, nic.queues)?),
                None => None,
            };
            command.args(nic.arguments(number, queues.as_ref()));
            // The command owns them until QEMU has been started.
            if let Some(queues) = queues {
                queues.pass(&mut command);
            }
        }
        for (number, disk) in self.disks.iter().enumerate() {
            command.args(disk.arguments(number));
        }
        for device in &devices {
            command.args(&device.arguments);
        }
        command.args(&self.extra);
        Ok(PreparedVm {
            name: name.to_owned(),
            command,
            qmp_path: at("qmp"),
            stderr_path: at("stderr"),
            console_path: at("console"),
            console_listener,
            harness_listener,
            process: None,
            ram,
            devices,
        })
    }

    /// The accelerator. Locked memory includes the translated code, of which QEMU reserves 1 GiB.
    fn accelerator(&self) -> String {
        let locked = if self.ram.is_locked() {
            ",tb-size=64"
        } else {
            ""
        };
        match self.accelerator {
            Accelerator::Tcg => format!("tcg,thread=multi{locked}"),
            Accelerator::Kvm => "kvm".to_owned(),
        }
    }

    /// The arguments for the guest's kernel and initramfs.
    fn kernel_arguments(&self) -> Result<Vec<OsString>, LabError> {
        if self.nano {
            return Ok(vec!["-kernel".into(), nano_kernel()?.into()]);
        }
        let kernel = self.kernel.clone();
        let has_tpm = self.devices.contains(&Device::Tpm);
        let initramfs = self.initramfs.clone();
        Ok(vec![
            "-kernel".into(),
            kernel
                .map_or_else(|| self.firmware.kernel(has_tpm), Ok)?
                .into(),
            "-initrd".into(),
            initramfs.map_or_else(crate::initramfs, Ok)?.into(),
        ])
    }

    /// The arguments for the processors. All are of one socket, so that their numbers are known.
    fn processors(&self) -> Vec<String> {
        let (now, most) = (self.cpus, self.cpus + self.hot_cpus);
        if self.hot_cpus == 0 {
            return vec!["-smp".to_owned(), now.to_string()];
        }
        let mut arguments = vec![
            "-smp".to_owned(),
            format!("{now},maxcpus={most},sockets=1,cores={most},threads=1"),
        ];
        if self.incoming {
            for core in now..most {
                arguments.push("-device".to_owned());
                arguments.push(format!(
                    "{HOT_CPU},id=cpu{core},socket-id=0,die-id=0,core-id={core},thread-id=0"
                ));
            }
        }
        arguments
    }

    fn kernel_command_line(&self) -> String {
        let mut line = format!("{KERNEL_ARGUMENTS} {}", self.workload.command_line());
        let addresses: Vec<_> = self.nics.iter().map(|nic| nic.address.as_str()).collect();
        if !addresses.is_empty() {
            line.push_str(" hk.net=");
            line.push_str(&addresses.join(","));
        }
        for option in &self.kernel_options {
            line.push(' ');
            line.push_str(option);
        }
        // Emulated with ACPI, it has no timer by which the kernel could measure the frequency.
        if self.machine == "microvm" {
            line.push_str(&format!(" tsc_early_khz={}", tsc::khz()));
        }
        line
    }
}

impl Nic {
    /// QEMU's arguments for the card with this number. QEMU opens the tap device, or uses `passed`.
    fn arguments(&self, number: usize, passed: Option<&TapQueues>) -> Vec<String> {
        let several = self.queues > 1;
        let backend = match passed {
            Some(queues) => queues.argument(),
            None => {
                let queues = format!(",queues={}", self.queues);
                let queues = if several { &queues } else { "" };
                format!("ifname={},script=no,downscript=no{queues}", self.tap)
            }
        };
        let vhost = if self.vhost { ",vhost=on" } else { "" };
        let backend = format!("tap,id=net{number},{backend}{vhost}");
        let mq = if several { ",mq=on" } else { "" };
        let (model, mac) = (self.model, &self.mac);
        let card = format!("{model},netdev=net{number},mac={mac},romfile={mq}");
        ["-netdev", &backend, "-device", &card]
            .map(str::to_owned)
            .to_vec()
    }
}

/// A command line as a template of `hikkoshi daemon`.
pub fn template(words: &[OsString]) -> String {
    let quoted = words
        .iter()
        .map(|word| format!("'{}'", word.to_string_lossy()));
    let quoted: Vec<_> = quoted.collect();
    format!("# a test's\n{}\n", quoted.join(" \\\n"))
}

/// A machine whose QEMU another program is to start. It is killed when the machine is dropped,
/// whether it was waited for or not.
#[derive(Debug)]
pub struct ExpectedVm {
    prepared: PreparedVm,
    config: VmConfig,
    lab: Lab,
}

impl ExpectedVm {
    /// QEMU's command line, without `-incoming` and the monitor of the program under test.
    pub fn command_line(&self) -> Vec<OsString> {
        self.prepared.command_line()
    }

    /// Waits until QEMU has been started; `qmp` is its socket for the program under test. QEMUs of
    /// this command line that have ended before are not meant.
    ///
    /// # Errors
    /// When it does not connect to the test's sockets.
    pub fn wait(mut self, qmp: &Path) -> Result<Vm, LabError> {
        qmp.clone_into(&mut self.prepared.qmp_path);
        self.prepared.connect(&self.config, &self.lab)
    }
}

/// The socket of the console. On drop, it kills each QEMU that has connected and was not accepted:
/// such a one would run on, since another program has started it.
#[derive(Debug)]
pub(super) struct ConsoleListener(pub(super) UnixListener);

impl Drop for ConsoleListener {
    fn drop(&mut self) {
        while let Ok((stream, _)) = self.0.accept() {
            let Ok(peer) = socket_peercred(&stream) else {
                continue;
            };
            let process = VmProcess::adopt(peer.pid);
            // As long as it holds its end, the process id is still its own.
            if let (Ok(mut process), false) = (process, has_hung_up(&stream)) {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// A machine whose QEMU has not connected to its sockets yet.
#[derive(Debug)]
pub(super) struct PreparedVm {
    pub(super) name: String,
    command: Command,
    qmp_path: PathBuf,
    stderr_path: PathBuf,
    console_path: PathBuf,
    pub(super) console_listener: ConsoleListener,
    pub(super) harness_listener: UnixListener,
    /// `None`: not started, or by another program.
    process: Option<VmProcess>,
    ram: PreparedRam,
    devices: Vec<PreparedDevice>,
}

impl PreparedVm {
    /// QEMU's command line.
    pub(super) fn command_line(&self) -> Vec<OsString> {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(ToOwned::to_owned).collect()
    }

    /// Waits until QEMU has connected to its sockets.
    fn connect(self, config: &VmConfig, lab: &Lab) -> Result<Vm, LabError> {
        let Self {
            name,
            qmp_path,
            stderr_path,
            console_path,
            ram,
            devices,
            ..
        } = self;
        let mut starting = StartingVm {
            name: &name,
            stderr: &stderr_path,
            is_expected: self.process.is_none(),
            process: self.process,
        };
        let output = starting.accept(&self.console_listener.0, "its console")?;
        if starting.process.is_none() {
            let adopt = || VmProcess::adopt(socket_peercred(&output)?.pid);
            let finding = LabError::file("finding the process of", &name);
            starting.process = Some(adopt().map_err(finding)?);
        }
        let monitor = starting.accept(&self.harness_listener, "its monitor")?;
        let input = output
            .try_clone()
            .map_err(LabError::file("using", console_path))?;
        let console = config.console.clone().unwrap_or_default();
        console.follow(&name, output)?;
        // The greeting arrives after QEMU has processed its command line; otherwise QEMU ends.
        let qmp = match Qmp::new(&name, monitor) {
            Ok(qmp) => qmp,
            Err(error) => {
                starting.still_running("it greets")?;
                return Err(error);
            }
        };
        let port = devices.iter().find_map(|device| device.port.as_ref());
        let port = port.map(|port| starting.accept(port, "its port"));
        let port = port.transpose()?;
        let Some(process) = starting.finish() else {
            unreachable!("the process is taken here only");
        };
        Ok(Vm {
            pid: process.id(),
            name,
            process: Mutex::new(process),
            qmp_path,
            stderr_path,
            qmp,
            console,
            input: Mutex::new(input),
            port,
            ram,
            hot_cpus: config.hot_cpus,
            _devices: devices,
            _disks: config.disks.clone(),
            _throttle: config.throttle.clone(),
            _memory_limit: config.memory_limit.clone(),
            _namespace: config.namespace.clone(),
            _lab: lab.clone(),
        })
    }
}

/// A QEMU that has not connected to its sockets yet; killed on drop.
struct StartingVm<'a> {
    name: &'a str,
    stderr: &'a Path,
    /// Another program starts it, perhaps several times.
    is_expected: bool,
    process: Option<VmProcess>,
}

/// Whether the other end was closed.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let answered = rustix::event::poll(&mut polled, Some(&Timespec::default()));
    answered.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

impl StartingVm<'_> {
    fn accept(&mut self, listener: &UnixListener, what: &str) -> Result<UnixStream, LabError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok((stream, _)) = listener.accept() {
                if self.is_expected && has_hung_up(&stream) {
                    continue;
                }
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
                    seen: stderr_tail(self.stderr),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    fn still_running(&mut self, what: &str) -> Result<(), LabError> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match self.process.as_mut().map(VmProcess::try_wait) {
                Some(Ok(Some(status))) => {
                    return Err(LabError::Ended {
                        vm: self.name.to_owned(),
                        status: status.to_string(),
                        waiting_for: format!("it was starting, before {what}"),
                        stderr: stderr_tail(self.stderr),
                    });
                }
                // QEMU closes its sockets shortly before it ends; on a busy machine that takes
                // long.
                _ if what == "it greets" && Instant::now() < deadline => std::thread::sleep(POLL),
                _ => return Ok(()),
            }
        }
    }

    /// The machine has started: the caller owns the process from now on.
    fn finish(mut self) -> Option<VmProcess> {
        self.process.take()
    }
}

impl Drop for StartingVm<'_> {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Listens at a socket that QEMU connects to. Accepting does not wait.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, LabError> {
    // A machine of the same name may have ended.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(LabError::file("listening at", path))?;
    listener
        .set_nonblocking(true)
        .map_err(LabError::file("listening at", path))?;
    Ok(listener)
}
