//! QEMU's descriptor of a tap device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::network_frame::{MAX_NETWORK_FRAME, NetworkFrame, OFFLOAD_LEN};

/// The most frames that are read from a queue. A tap device has room for 1,000 by default
/// (`txqueuelen`).
const MAX_FRAMES: usize = 4096;

/// A queue of a tap device, which the guest's network card reads.
#[derive(Debug)]
pub struct TunQueue {
    device: OwnedFd,
}

impl TunQueue {
    /// The queue behind a copy of QEMU's descriptor of `/dev/net/tun`.
    pub fn new(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Takes the frames out of the queue that have not been read: the guest does not get them
    /// there. Call it only when the guest does not run, and will not run there again.
    ///
    /// # Errors
    /// As `read(2)` and the ioctls of a tun device.
    pub fn take(&self) -> io::Result<Vec<NetworkFrame>> {
        let header = crate::system_calls::tun_header_len(self.device.as_fd())?;
        let mut buffer = vec![0; MAX_NETWORK_FRAME + header.max(OFFLOAD_LEN)];
        let mut frames = Vec::new();
        while frames.len() < MAX_FRAMES && !self.is_empty()? {
            let len = match rustix::io::read(&self.device, buffer.as_mut_slice()) {
                Ok(len) => len,
                // QEMU's descriptor does not block.
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let bytes = buffer.get(header..len).map(<[u8]>::to_vec);
            // Without a header the kernel has completed the frame.
            let offload = buffer.first_chunk().filter(|_| header > 0);
            frames.extend(bytes.map(|bytes| NetworkFrame {
                offload: offload.copied().unwrap_or_default(),
                bytes,
            }));
        }
        Ok(frames)
    }

    /// The network namespace that the device is in, a file as `/proc/PID/ns/net`. A QEMU that was
    /// given the device's descriptor may be in another one.
    ///
    /// # Errors
    /// As the ioctl `TUNGETDEVNETNS`, which needs `CAP_NET_ADMIN` in that namespace.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        crate::system_calls::tun_namespace(self.device.as_fd())
    }

    /// Sends a frame to the network as if the guest had sent it.
    ///
    /// # Errors
    /// As `write(2)` on a tun device: `EBADFD` for a queue that is not used, `EIO` for a device
    /// that is down.
    pub fn send_as_guest(&self, frame: &[u8]) -> io::Result<()> {
        let header = crate::system_calls::tun_header_len(self.device.as_fd())?;
        // A header of zeros: nothing is left to do.
        let mut bytes = vec![0; header];
        bytes.extend_from_slice(frame);
        rustix::io::write(&self.device, &bytes)?;
        Ok(())
    }

    /// Whether everything in the queue has been read.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub fn is_empty(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut polled, Some(&now))?;
        Ok(!polled[0].revents().contains(PollFlags::IN))
    }
}
