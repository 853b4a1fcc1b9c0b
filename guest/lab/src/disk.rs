//! A machine's disks, as QEMU is given them.

use crate::DiskImage;
use serde_json::json;
use std::sync::Arc;

/// How QEMU's block layer caches.
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
    /// A pool of threads with `preadv` and `pwritev`.
    Threads,
    /// Linux AIO; with direct I/O only.
    Native,
    /// io_uring.
    IoUring,
}

impl Aio {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Threads, Self::Native, Self::IoUring];

    /// As QEMU takes it.
    pub fn option(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Native => "native",
            Self::IoUring => "io_uring",
        }
    }
}

/// A virtio disk. Its image is locked by the QEMU that uses it (`locking=on`): source and
/// destination have the same one, and QEMU hands the lock over with the guest.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) image: Arc<DiskImage>,
    cache: Cache,
    aio: Aio,
    iothread: bool,
}

impl Disk {
    /// With `cache=none` and `aio=native`, as libvirt's users mostly have it.
    pub fn new(image: DiskImage) -> Self {
        Self {
            image: Arc::new(image),
            cache: Cache::None,
            aio: Aio::Native,
            iothread: false,
        }
    }

    /// How it caches.
    #[must_use]
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// How it submits.
    #[must_use]
    pub fn aio(mut self, aio: Aio) -> Self {
        self.aio = aio;
        self
    }

    /// In a thread of its own (`iothread`) instead of QEMU's main loop.
    #[must_use]
    pub fn iothread(mut self) -> Self {
        self.iothread = true;
        self
    }

    /// What is in it.
    pub fn image(&self) -> &DiskImage {
        &self.image
    }

    /// QEMU's arguments for disk `number`. The guest calls the first one `/dev/vda`.
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
        let mut device = format!("virtio-blk-pci,drive={name},id={name}-device");
        let mut arguments = Vec::new();
        if self.iothread {
            let thread = format!("{name}-thread");
            arguments.extend(["-object".to_owned(), format!("iothread,id={thread}")]);
            device.push_str(",iothread=");
            device.push_str(&thread);
        }
        arguments.extend(["-blockdev".to_owned(), node.to_string()]);
        arguments.extend(["-device".to_owned(), device]);
        arguments
    }
}
