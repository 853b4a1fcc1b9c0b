//! The configuration of a machine.

use crate::LabError;
use crate::{
    Console, Device, Disk, Firmware, MemoryLimit, Namespace, QemuVersion, Ram, Throttle, Workload,
    devices_initramfs, devices_kernel,
};
use std::path::PathBuf;

/// A machine type that all these QEMU versions support, so that a guest can move between them.
pub const DEFAULT_MACHINE: &str = "pc-q35-7.2";

/// A network card on a tap device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Nic {
    /// The tap device, in the machine's namespace.
    pub tap: String,
    /// The card's MAC address; the same at source and destination.
    pub mac: String,
    /// The guest's address with its prefix, such as `10.88.0.2/24`.
    pub address: String,
    /// Number of queue pairs. The guest uses as many as it has processors.
    pub queues: u32,
    /// QEMU's name of the card's type.
    pub model: &'static str,
    /// Whether the host's kernel handles its frames (vhost-net).
    pub vhost: bool,
}

/// What runs the guest's code.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Accelerator {
    /// QEMU's emulator.
    #[default]
    Tcg,
    /// The host's hypervisor.
    Kvm,
}

/// The configuration of a machine. A destination uses a clone of its source's, with
/// [`VmConfig::incoming`].
#[derive(Clone, Debug)]
pub struct VmConfig {
    pub(crate) version: QemuVersion,
    pub(crate) program: Option<PathBuf>,
    pub(crate) machine: String,
    pub(crate) accelerator: Accelerator,
    pub(crate) nano: bool,
    pub(crate) cpus: u32,
    pub(crate) hot_cpus: u32,
    pub(crate) firmware: Firmware,
    pub(crate) ram: Ram,
    pub(crate) ram_directory: Option<PathBuf>,
    pub(crate) workload: Workload,
    pub(crate) incoming: bool,
    pub(crate) kernel: Option<PathBuf>,
    pub(crate) initramfs: Option<PathBuf>,
    pub(crate) nics: Vec<Nic>,
    pub(crate) taps_opened_in: Option<Namespace>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) devices: Vec<Device>,
    pub(crate) throttle: Option<Throttle>,
    pub(crate) memory_limit: Option<MemoryLimit>,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) console: Option<Console>,
    pub(crate) kernel_options: Vec<String>,
    pub(crate) extra: Vec<String>,
}

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            version: QemuVersion::V10_0,
            program: None,
            machine: DEFAULT_MACHINE.to_owned(),
            accelerator: Accelerator::default(),
            nano: false,
            cpus: 1,
            hot_cpus: 0,
            firmware: Firmware::Default,
            ram: Ram::shared(256),
            ram_directory: None,
            workload: Workload::verify(32),
            incoming: false,
            kernel: None,
            initramfs: None,
            nics: Vec::new(),
            taps_opened_in: None,
            disks: Vec::new(),
            devices: Vec::new(),
            throttle: None,
            memory_limit: None,
            namespace: None,
            console: None,
            kernel_options: Vec::new(),
            extra: Vec::new(),
        }
    }
}

impl VmConfig {
    /// QEMU 10.0, [`DEFAULT_MACHINE`], one processor, 256 MiB shared, `verify` over 32 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the QEMU version.
    #[must_use]
    pub fn version(mut self, version: QemuVersion) -> Self {
        self.version = version;
        self
    }

    /// Uses another QEMU, which has the options of 11.1
    /// ([`unknown_qemu`](crate::unknown_qemu())).
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self.version(QemuVersion::V11_1)
    }

    /// Sets the machine type; a versioned one, if the guest is to move between versions.
    #[must_use]
    pub fn machine(mut self, machine: &str) -> Self {
        machine.clone_into(&mut self.machine);
        self
    }

    /// Uses KVM instead of the emulator.
    #[must_use]
    pub fn kvm(mut self) -> Self {
        self.accelerator = Accelerator::Kvm;
        self
    }

    /// Boots the nano guest (guest/nano) instead of Linux: no disk, at most one network card, and
    /// no workload `lockstep`. Its firmware is the one that starts a kernel and does nothing else.
    #[must_use]
    pub fn nano(mut self) -> Self {
        self.nano = true;
        self.firmware = Firmware::Qboot;
        self
    }

    /// Whether it boots the nano guest.
    pub fn is_nano(&self) -> bool {
        self.nano
    }

    /// Sets the number of virtual processors.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Adds room for so many more processors, of which the guest uses each once it is plugged:
    /// in a machine that boots by [`Vm::plug_processors`](crate::Vm::plug_processors). A
    /// destination has them from the start.
    #[must_use]
    pub fn hot_cpus(mut self, cpus: u32) -> Self {
        self.hot_cpus = cpus;
        self.workload = self.workload.option("online", 1);
        self
    }

    /// Sets the firmware.
    #[must_use]
    pub fn firmware(mut self, firmware: Firmware) -> Self {
        self.firmware = firmware;
        self
    }

    /// Adds a device.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Boots the kernel with the drivers of all devices. It takes longer to boot.
    ///
    /// # Errors
    /// When it has not been set up.
    pub fn all_drivers(mut self) -> Result<Self, LabError> {
        self.kernel = Some(devices_kernel()?);
        self.initramfs = Some(devices_initramfs()?);
        Ok(self)
    }

    /// Sets the memory.
    #[must_use]
    pub fn ram(mut self, ram: Ram) -> Self {
        self.ram = ram;
        self
    }

    /// Sets the folder for RAM files; default: the tmpfs for shared memory.
    #[must_use]
    pub fn ram_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.ram_directory = Some(directory.into());
        self
    }

    /// Sets the guest's workload. A destination needs the same, so that its command line is the
    /// same.
    #[must_use]
    pub fn workload(mut self, workload: Workload) -> Self {
        self.workload = workload;
        self
    }

    /// Waits for an incoming guest instead of booting one (`-incoming defer`).
    #[must_use]
    pub fn incoming(mut self) -> Self {
        self.incoming = true;
        self
    }

    /// The QEMU version.
    pub fn qemu_version(&self) -> QemuVersion {
        self.version
    }

    /// Whether KVM is to run the guest.
    pub fn uses_kvm(&self) -> bool {
        self.accelerator == Accelerator::Kvm
    }

    /// The machine type.
    pub fn machine_type(&self) -> &str {
        &self.machine
    }

    /// The memory.
    pub fn memory(&self) -> &Ram {
        &self.ram
    }

    /// Sets another initramfs than the test guest's.
    #[must_use]
    pub fn initramfs(mut self, path: impl Into<PathBuf>) -> Self {
        self.initramfs = Some(path.into());
        self
    }

    /// Adds a network card on a tap device: `eth0`, `eth1` and so on in the guest.
    #[must_use]
    pub fn nic(mut self, nic: Nic) -> Self {
        self.nics.push(nic);
        self
    }

    /// Opens the tap devices in that namespace and passes descriptors to QEMU, as libvirt does.
    /// Otherwise QEMU opens them, in its own namespace.
    #[must_use]
    pub fn pass_taps_of(mut self, namespace: &Namespace) -> Self {
        self.taps_opened_in = Some(namespace.clone());
        self
    }

    /// Adds a disk: `/dev/vda`, `/dev/vdb` and so on in the guest.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }

    /// Adds a first disk with a file system, which the guest uses ([`Workload::with_file_system`]).
    #[must_use]
    pub fn file_system(mut self, disk: Disk) -> Self {
        self.workload = self.workload.with_file_system(disk.device());
        self.disk(disk)
    }

    /// The disks.
    pub fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Limits QEMU's read rate from disks.
    #[must_use]
    pub fn throttle(mut self, throttle: &Throttle) -> Self {
        self.throttle = Some(throttle.clone());
        self
    }

    /// Limits the memory that QEMU may use; the rest is swapped. Each machine needs a limit of its
    /// own.
    #[must_use]
    pub fn memory_limit(mut self, limit: &MemoryLimit) -> Self {
        self.memory_limit = Some(limit.clone());
        self
    }

    /// Runs QEMU in that network namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &Namespace) -> Self {
        self.namespace = Some(namespace.clone());
        self
    }

    /// Sets the console that collects the guest's output. A destination shares its source's
    /// console.
    #[must_use]
    pub fn console(mut self, console: Console) -> Self {
        self.console = Some(console);
        self
    }

    /// Adds an option for the guest's kernel.
    #[must_use]
    pub fn kernel_option(mut self, option: &str) -> Self {
        self.kernel_options.push(option.to_owned());
        self
    }

    /// Adds arguments for QEMU.
    #[must_use]
    pub fn arguments<I: IntoIterator<Item = S>, S: Into<String>>(mut self, arguments: I) -> Self {
        self.extra.extend(arguments.into_iter().map(Into::into));
        self
    }
}
