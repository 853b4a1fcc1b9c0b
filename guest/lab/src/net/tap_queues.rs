//! Opening a tap device for a QEMU that gets descriptors, as libvirt does.

use super::Namespace;
use crate::LabError;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

const DEVICE: &str = "/dev/net/tun";

/// `TUNSETIFF`, and the flags of a tap device with a virtio-net header before each frame and no
/// other header: `linux/if_tun.h`.
const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const IFF_TAP: u16 = 2;
const IFF_MULTI_QUEUE: u16 = 0x100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

/// `struct ifreq` with flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Open queues of a tap device, for one machine.
#[derive(Debug)]
pub(crate) struct TapQueues(Arc<Vec<OwnedFd>>);

impl TapQueues {
    /// Opens that many queues of the tap device `name`, which exists in `namespace`.
    pub(crate) fn open(namespace: &Namespace, name: &str, queues: u32) -> Result<Self, LabError> {
        let open = || (0..queues).map(|_| open_queue(name, queues > 1)).collect();
        let opened: io::Result<Vec<_>> = namespace.run(open)?;
        let opened = opened.map_err(LabError::file("opening as a tap device", name))?;
        Ok(Self(Arc::new(opened)))
    }

    /// The option of `-netdev tap`: `fd=3`, or `fds=3:4`.
    pub(crate) fn argument(&self) -> String {
        let numbers = self.0.iter().map(|queue| queue.as_raw_fd().to_string());
        let numbers: Vec<_> = numbers.collect();
        let key = if numbers.len() == 1 { "fd" } else { "fds" };
        format!("{key}={}", numbers.join(":"))
    }

    /// Makes a command inherit the descriptors, with the same numbers.
    pub(crate) fn pass(&self, command: &mut Command) {
        let queues = Arc::clone(&self.0);
        // SAFETY: runs between fork and exec, makes system calls on open files, allocates nothing.
        unsafe {
            command.pre_exec(move || {
                for queue in queues.iter() {
                    fcntl_setfd(queue, FdFlags::empty())?;
                }
                Ok(())
            });
        }
    }
}

impl Namespace {
    /// Creates a tap device, on which the host transmits nothing by itself, and opens its queue.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn create_tap(&self, name: &str) -> Result<OwnedFd, LabError> {
        let opened = self.run(|| open_queue(name, false))?;
        let queue = opened.map_err(LabError::file("creating as a tap device", name))?;
        self.ip(&["link", "set", "dev", name, "addrgenmode", "none"])?;
        self.ip(&["link", "set", "dev", name, "up"])?;
        Ok(queue)
    }
}

fn open_queue(name: &str, several: bool) -> io::Result<OwnedFd> {
    let queue = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | if several { IFF_MULTI_QUEUE } else { 0 },
        rest: [0; 22],
    };
    // One byte of zero remains at the end.
    let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
    let place = request.name[..15].get_mut(..name.len());
    place.ok_or_else(too_long)?.copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which has this layout.
    unsafe { ioctl(&queue, Updater::<TUNSETIFF, _>::new(&mut request)) }?;
    Ok(queue)
}
