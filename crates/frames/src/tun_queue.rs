//! QEMU's descriptor of a tap device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::frame::{MAX_FRAME, OFFLOAD_LEN};

/// The most frames that are read from a queue. A tap device has room for 1,000 by default
/// (`txqueuelen`).
const MOST: usize = 4096;

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
    pub fn take(&self) -> io::Result<Vec<Vec<u8>>> {
        let header = crate::system_calls::tun_header_len(self.device.as_fd())?;
        let mut buffer = vec![0; MAX_FRAME + header.max(OFFLOAD_LEN)];
        let mut frames = Vec::new();
        while frames.len() < MOST && self.is_ready()? {
            let len = match rustix::io::read(&self.device, buffer.as_mut_slice()) {
                Ok(len) => len,
                // QEMU's descriptor does not block.
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            frames.extend(buffer.get(header..len).map(<[u8]>::to_vec));
        }
        Ok(frames)
    }

    fn is_ready(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        Ok(poll(&mut polled, Some(&now))? > 0 && polled[0].revents().contains(PollFlags::IN))
    }
}
