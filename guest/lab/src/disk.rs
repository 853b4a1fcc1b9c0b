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

/// A virtio disk. The QEMU that uses its image locks it (`locking=on`). Source and destination use
/// the same image, and QEMU hands over the lock with the guest.
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) image: Arc<DiskImage>,
    cache: Cache,
    aio: Aio,
    iothread: bool,
}

impl Disk {
    /// A disk with `cache=none` and `aio=native`, the common setting with libvirt.
    pub fn new(image: DiskImage) -> Self {
        Self {
            image: Arc::new(image),
            cache: Cache::None,
            aio: Aio::Native,
            iothread: false,
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
