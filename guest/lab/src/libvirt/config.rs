//! A domain's XML.

use crate::artifacts::ovmf;
use crate::vm::KERNEL_ARGUMENTS;
use crate::{DEFAULT_MACHINE, Disk, Firmware, GuestNetwork, LabError, Workload, initramfs};

/// Where the guest's console is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DomainConsole {
    /// A socket of the test on each host, to which QEMU connects. Nothing is lost.
    Socket,
    /// A pseudo-terminal, for `virsh console`.
    Terminal,
}

/// A domain with the test guest, or the Debian guest if its first disk is one
/// ([`Workload::in_debian`]).
#[derive(Clone, Debug)]
pub struct DomainConfig {
    pub(super) name: String,
    memory_mib: u64,
    cpus: u32,
    workload: Workload,
    pub(super) disks: Vec<Disk>,
    bridge: Option<&'static str>,
    pub(super) console: DomainConsole,
    firmware: Firmware,
    elements: String,
    devices: String,
    pub(super) persistent: bool,
}

impl DomainConfig {
    /// The MAC address of the guest's card.
    const MAC: &str = "52:54:00:12:34:56";

    /// One emulated processor, 128 MiB, a transient domain.
    pub fn new(name: &str, workload: Workload) -> Self {
        Self {
            name: name.to_owned(),
            memory_mib: 128,
            cpus: 1,
            workload,
            disks: Vec::new(),
            bridge: None,
            console: DomainConsole::Socket,
            firmware: Firmware::Default,
            elements: String::new(),
            devices: String::new(),
            persistent: false,
        }
    }

    /// Sets the size of its memory.
    #[must_use]
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Sets the number of processors.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Adds a virtio disk, with `cache=none` and `io=native`; its image is the same on both hosts.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }

    /// Adds a first disk with a file system, which the guest uses
    /// ([`Workload::with_file_system`]).
    #[must_use]
    pub fn file_system(mut self, disk: Disk) -> Self {
        self.workload = self.workload.with_file_system(disk.device());
        self.disk(disk)
    }

    /// Adds a card on this bridge. The guest has the address [`GuestNetwork::GUEST`].
    #[must_use]
    pub fn bridge(mut self, bridge: &'static str) -> Self {
        self.bridge = Some(bridge);
        self
    }

    /// Sets where the console is.
    #[must_use]
    pub fn console(mut self, console: DomainConsole) -> Self {
        self.console = console;
        self
    }

    /// Sets the firmware. The file with the variables of [`Firmware::Ovmf`] is where libvirt puts
    /// it, on each host another one.
    #[must_use]
    pub fn firmware(mut self, firmware: Firmware) -> Self {
        self.firmware = firmware;
        self
    }

    /// Adds elements to the domain, as XML: a title, metadata, a maximum of memory.
    #[must_use]
    pub fn elements(mut self, xml: &str) -> Self {
        self.elements.push_str(xml);
        self
    }

    /// Adds devices, as XML.
    #[must_use]
    pub fn devices(mut self, xml: &str) -> Self {
        self.devices.push_str(xml);
        self
    }

    /// Defines the domain before it is started, so that libvirt keeps it when it ends.
    #[must_use]
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// The XML, for `virsh create` or `define`.
    ///
    /// # Errors
    /// When the guest's files are missing.
    pub fn xml(&self) -> Result<String, LabError> {
        let mut command_line = format!("{KERNEL_ARGUMENTS} {}", self.workload.command_line());
        let mut devices = String::new();
        for (disk, letter) in self.disks.iter().zip('a'..='z') {
            let image = disk.image();
            devices.push_str(&format!(
                "<disk type='file' device='disk'>\
                 <driver name='qemu' type='{}' cache='none' io='native'/>\
                 <source file='{}'/><target dev='vd{letter}' bus='virtio'/></disk>",
                image.format().option(),
                image.path().display(),
            ));
        }
        if let Some(bridge) = self.bridge {
            devices.push_str(&format!(
                "<interface type='bridge'><mac address='{}'/><source bridge='{bridge}'/>\
                 <model type='virtio'/><rom enabled='no'/></interface>",
                Self::MAC
            ));
            command_line.push_str(&format!(" hk.net={}/24", GuestNetwork::GUEST));
        }
        devices.push_str(&match self.console {
            DomainConsole::Socket => format!(
                "<serial type='unix'><source mode='connect' path='{}/{}'/></serial>",
                super::LibvirtHost::FOLDER,
                self.socket(),
            ),
            DomainConsole::Terminal => "<serial type='pty'/>".to_owned(),
        });
        let firmware = match self.firmware {
            Firmware::Default => String::new(),
            Firmware::Qboot => "<loader>qboot.rom</loader>".to_owned(),
            Firmware::Ovmf => format!(
                "<loader readonly='yes' type='pflash'>{}</loader><nvram template='{}'/>",
                ovmf("code.fd")?.display(),
                ovmf("vars.fd")?.display(),
            ),
        };
        Ok(format!(
            "<domain type='qemu'><name>{}</name>{}<memory unit='MiB'>{}</memory><vcpu>{}</vcpu>\
             <os><type arch='x86_64' machine='{DEFAULT_MACHINE}'>hvm</type>{firmware}\
             <kernel>{}</kernel><initrd>{}</initrd><cmdline>{command_line}</cmdline></os>\
             <features><acpi/><apic/></features>\
             <devices>{devices}{}<memballoon model='none'/></devices></domain>",
            self.name,
            self.elements,
            self.memory_mib,
            self.cpus,
            self.firmware
                .kernel(self.devices.contains("<tpm "))?
                .display(),
            initramfs()?.display(),
            self.devices,
        ))
    }

    /// The name of the console's socket in each host's folder.
    pub(super) fn socket(&self) -> String {
        format!("{}.console", self.name)
    }
}
