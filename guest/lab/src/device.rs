//! Devices beside disks and the network card, and QEMU's arguments for them.

use crate::passt::Passt;
use crate::vm::listen;
use crate::{Lab, LabError, PasstMode, TpmEmulator};
use std::os::unix::net::UnixListener;

/// A device. Source and destination have the same devices in the same order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Device {
    /// `VGA`, with 16 MiB of video memory.
    Vga,
    /// `virtio-vga`.
    VirtioVga,
    /// `virtio-gpu-pci`.
    VirtioGpu,
    /// `qemu-xhci` with a `usb-tablet`.
    UsbTablet,
    /// `e1000e` on a user-mode network.
    E1000e,
    /// `virtio-net-pci` with so many queue pairs, on a tap device that QEMU creates.
    VirtioNet {
        /// Number of queue pairs.
        queues: u32,
    },
    /// `virtio-net-pci`, connected to a passt of its own.
    Passt(PasstMode),
    /// `virtio-rng-pci`.
    VirtioRng,
    /// `virtio-rtc-pci`: from QEMU 11.1 on.
    VirtioRtc,
    /// `virtio-balloon-pci`.
    VirtioBalloon,
    /// `virtio-balloon-pci` by which the guest returns free memory (`free-page-reporting`).
    ReportingBalloon,
    /// `virtio-serial-pci` with a port, whose other end is [`Vm::port`](crate::Vm::port).
    VirtioSerial,
    /// `vhost-vsock-pci`.
    VhostVsock,
    /// `tpm-crb`, with a TPM emulator (swtpm) for each machine.
    Tpm,
}

/// QEMU's arguments for a device, and the process that it needs.
#[derive(Debug, Default)]
pub(crate) struct PreparedDevice {
    pub(crate) arguments: Vec<String>,
    /// QEMU connects to it.
    pub(crate) port: Option<UnixListener>,
    _tpm: Option<TpmEmulator>,
    _passt: Option<Passt>,
}

impl Device {
    /// Prepares the device; `number` is unique in machine `vm`.
    pub(crate) fn prepare(
        self,
        lab: &Lab,
        vm: &str,
        number: usize,
    ) -> Result<PreparedDevice, LabError> {
        let id = format!("extra{number}");
        let mut prepared = PreparedDevice::default();
        let mut add = |name: &str, value: String| {
            prepared.arguments.extend([name.to_owned(), value]);
        };
        match self {
            Self::Vga => add("-device", format!("VGA,id={id}")),
            Self::VirtioVga => add("-device", format!("virtio-vga,id={id}")),
            Self::VirtioGpu => add("-device", format!("virtio-gpu-pci,id={id}")),
            Self::UsbTablet => {
                add("-device", format!("qemu-xhci,id={id}"));
                add("-device", format!("usb-tablet,bus={id}.0"));
            }
            Self::E1000e => {
                add("-netdev", format!("user,id={id}-net,restrict=on"));
                add(
                    "-device",
                    format!("e1000e,id={id},netdev={id}-net,romfile="),
                );
            }
            Self::VirtioNet { queues } => {
                let tap = "tap,ifname=hk%d,script=no,downscript=no";
                add("-netdev", format!("{tap},id={id}-net,queues={queues}"));
                let mq = "virtio-net-pci,mq=on,romfile=";
                add("-device", format!("{mq},id={id},netdev={id}-net"));
            }
            Self::Passt(mode) => {
                let socket = lab.folder().join(format!("{vm}.{id}"));
                let (backend, passt) = Passt::prepare(mode, &format!("{id}-net"), &socket)?;
                add("-netdev", backend);
                let card = format!("virtio-net-pci,id={id},netdev={id}-net,romfile=");
                add("-device", card);
                prepared._passt = passt;
            }
            Self::VirtioRng => add("-device", format!("virtio-rng-pci,id={id}")),
            Self::VirtioRtc => add("-device", format!("virtio-rtc-pci,id={id}")),
            Self::VirtioBalloon => add("-device", format!("virtio-balloon-pci,id={id}")),
            Self::ReportingBalloon => {
                let reporting = "virtio-balloon-pci,free-page-reporting=on";
                add("-device", format!("{reporting},id={id}"));
            }
            Self::VirtioSerial => {
                add("-device", format!("virtio-serial-pci,id={id}"));
                let path = lab.folder().join(format!("{vm}.{id}"));
                let socket = format!("socket,id={id}-chardev,path={}", path.display());
                add("-chardev", socket);
                let port = format!("virtserialport,bus={id}.0,chardev={id}-chardev,name=hk");
                add("-device", port);
                prepared.port = Some(listen(&path)?);
            }
            Self::VhostVsock => {
                // Unique on the host, and not one of the numbers below 3 that are reserved.
                let cid = 1000 + u64::from(std::process::id()) * 16 + number as u64;
                add(
                    "-device",
                    format!("vhost-vsock-pci,id={id},guest-cid={cid}"),
                );
            }
            Self::Tpm => {
                let emulator = TpmEmulator::start(&lab.folder().join(format!("{vm}.{id}")), &id)?;
                prepared.arguments = emulator.arguments().to_vec();
                prepared._tpm = Some(emulator);
            }
        }
        Ok(prepared)
    }
}
