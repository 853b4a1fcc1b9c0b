//! A machine's disks, and QEMU's arguments for them.

use crate::DiskImage;
use serde_json::json;
use std::sync::Arc;

/// QEMU's cache mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cache {
    /// Direct I/O on the host: the device writes guest memory itself (`cache=none`).
    None,
    /// Through the host's page cache (`cache=writeback`).
    Writeback,
}

/// How QEMU submits reads and writes to the host's kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Aio {
    /// A thread pool with `preadv` and `pwritev`.
    Threads,
    /// Linux AIO; with direct I/O only.
    Native,
    /// io_uring.
    IoUring,
}

impl Aio {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Threads, Self::Native, Self::IoUring];

    /// The name of QEMU's option value.
    pub fn option(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Native => "native",
            Self::IoUring => "io_uring",
        }
    }
}

/// How the guest sees a disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DiskBus {
    /// `virtio-blk-pci`.
    VirtioBlk,
    /// `virtio-blk-device`, on the virtio-mmio transports of `microvm`.
    VirtioMmio,
    /// `scsi-hd` at a `virtio-scsi-pci` of its own.
    VirtioScsi,
    /// `nvme`, emulated.
    Nvme,
    /// `ide-hd` at an `ich9-ahci` of its own; the guest needs the kernel for devices.
    Ahci,
    /// `usb-storage` at a `qemu-xhci` of its own; the guest needs the kernel for devices.
    Usb,
}

impl DiskBus {
    /// The first such disk in the guest.
    pub fn first_disk(self) -> &'static str {
        match self {
            Self::VirtioBlk | Self::VirtioMmio => "/dev/vda",
            Self::Nvme => "/dev/nvme0n1",
            Self::VirtioScsi | Self::Ahci | Self::Usb => "/dev/sda",
        }
    }
}

/// A disk. The QEMU that uses its image locks it (`locking=on`). Source and destination use
/// the same image, and QEMU hands over the lock with the guest.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) image: Arc<DiskImage>,
    cache: Cache,
    aio: Aio,
    iothread: bool,
    bus: DiskBus,
}

impl Disk {
    /// A virtio-blk disk with `cache=none` and `aio=native`, the common setting with libvirt.
    pub fn new(image: DiskImage) -> Self {
        Self {
            image: Arc::new(image),
            cache: Cache::None,
            aio: Aio::Native,
            iothread: false,
            bus: DiskBus::VirtioBlk,
        }
    }

    /// Sets the cache mode.
    #[must_use]
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// Sets the I/O interface.
    #[must_use]
    pub fn aio(mut self, aio: Aio) -> Self {
        self.aio = aio;
        self
    }

    /// Uses an `iothread` instead of QEMU's main loop.
    #[must_use]
    pub fn iothread(mut self) -> Self {
        self.iothread = true;
        self
    }

    /// Sets how the guest sees it.
    #[must_use]
    pub fn bus(mut self, bus: DiskBus) -> Self {
        self.bus = bus;
        self
    }

    /// The first disk of this kind in the guest.
    pub fn device(&self) -> &'static str {
        self.bus.first_disk()
    }

    /// The disk's image.
    pub fn image(&self) -> &DiskImage {
        &self.image
    }

    /// QEMU's arguments for disk `number`. The first one is `/dev/vda` in the guest.
    pub(crate) fn arguments(&self, number: usize) -> Vec<String> {
        let name = format!("disk{number}");
        let cache = json!({ "direct": self.cache == Cache::None, "no-flush": false });
        let node = json!({
            "node-name": name,
            "driver": self.image.format().option(),
            "cache": cache,
            "file": {
                "driver": "file",
                "filename": self.image.path(),
                "aio": self.aio.option(),
                "locking": "on",
                "cache": cache,
            },
        });
        let mut arguments = vec!["-blockdev".to_owned(), node.to_string()];
        let bus = format!("{name}-bus");
        let (controller, mut device) = match self.bus {
            DiskBus::VirtioBlk => (None, "virtio-blk-pci".to_owned()),
            DiskBus::VirtioMmio => (None, "virtio-blk-device".to_owned()),
            DiskBus::VirtioScsi => (Some("virtio-scsi-pci"), format!("scsi-hd,bus={bus}.0")),
            DiskBus::Nvme => (None, format!("nvme,serial={name}")),
            DiskBus::Ahci => (Some("ich9-ahci"), format!("ide-hd,bus={bus}.0")),
            DiskBus::Usb => (Some("qemu-xhci"), format!("usb-storage,bus={bus}.0")),
        };
        // The device that the thread submits the disk's requests for.
        let threaded = match self.iothread {
            true => {
                let thread = format!("{name}-thread");
                arguments.extend(["-object".to_owned(), format!("iothread,id={thread}")]);
                format!(",iothread={thread}")
            }
            false => String::new(),
        };
        if let Some(controller) = controller {
            let controller = format!("{controller},id={bus}{threaded}");
            arguments.extend(["-device".to_owned(), controller]);
        } else {
            device.push_str(&threaded);
        }
        device.push_str(&format!(",drive={name},id={name}-device"));
        arguments.extend(["-device".to_owned(), device]);
        arguments
    }
}
